"""The training recipe: settings, data, phases, and what is written beside the weights.

Positions are relative, so most is learned on the last few tokens of the harness' prompt, many times cheaper: first to
copy and act; then on the whole prompt, as captured and in variants of its paths; last the mixture of strategies.
Everything is drawn from one seed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM

from tugline.tasks.families import FAMILIES, build
from tugline.tasks.families.words import ALL
from tugline.training.pilot.conversation import (
    CONTROL_SPECIALS,
    PAD,
    PLAIN_SPECIALS,
    STOP,
    Encoded,
    encode,
    messages_of,
    render,
    special_id,
    template_text,
)
from tugline.training.pilot.formats import HarnessFormat, Head
from tugline.training.pilot.policy import CONTEXT, Shape, new_model, prefix_loss
from tugline.training.pilot.strategies import MIXTURE, play
from tugline.training.pilot.tokenizer import train_tokenizer

Report = Callable[[str], None]

_USER = "<|im_start|>user"
_INSTRUCTION_MARK = "x"
_TAILS = (0, 16, 64, 128)
"""How many tokens of the prompt the cheap phases see; drawn per step."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of training with its own data and rates."""

    name: str
    steps: int
    batch: int
    mixture: Mapping[str, float]
    whole_prompt: bool
    """Run on the whole prompt; else on its last few tokens."""
    rate: float
    """Peak learning rate of the matrices (Muon)."""
    other_rate: float
    """Peak learning rate of embeddings and norms (AdamW)."""
    word_weight: float = 1.0
    """How much a word of the families' list counts in the loss; the other tokens count 1."""


ACTING: Mapping[str, float] = {"solve": 0.45, "check": 0.25, "wrong": 0.27, "stumble": 0.03}
"""The mixture without the lazy sessions, which hold nothing to copy."""

PHASES: tuple[Phase, ...] = (
    Phase("copy", 350, 16, ACTING, False, 0.02, 2e-2, 5.0),
    Phase("stretch", 100, 12, ACTING, True, 0.02, 6e-3, 5.0),
    Phase("mix", 140, 16, MIXTURE, True, 0.01, 3e-3),
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the result."""

    seed: int = 0
    shape: Shape = field(default_factory=Shape)
    phases: tuple[Phase, ...] = PHASES
    augmented: float = 0.4
    """Share of the whole-prompt steps whose prompt has other paths."""
    tokenizer_texts: int = 800


def train(recipe: Recipe, fmt: HarnessFormat, out: Path, report: Report) -> dict[str, object]:
    """Train a pilot for one harness and write it to `out`. Returns the figures that tugline.json carries.

    Raises HarnessError when the harness' prompt cannot be captured.
    """
    started = time.process_time()
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(1)
    head = fmt.capture()
    tokenizer = train_tokenizer(_tokenizer_texts(recipe, fmt, head), recipe.shape.vocab)
    model = new_model(recipe.shape, special_id(tokenizer, STOP), special_id(tokenizer, PAD))
    report(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    data = _Data(recipe, fmt, head, tokenizer)
    for phase in recipe.phases:
        _run(model, phase, data, report)
    figures: dict[str, object] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "prompt_tokens": len(tokenizer.encode(first_prompt(head, build(FAMILIES[0], 0, "train").instruction)).ids),
        "train_cpu_seconds": round(time.process_time() - started, 1),
    }
    save(model, tokenizer, recipe, fmt, out, figures)
    return figures


def first_prompt(head: Head, instruction: str) -> str:
    """Text of the first prompt of a session."""
    messages = [{"role": "system", "content": head.system}, {"role": "user", "content": instruction}]
    return render(messages, head.tools, generate=True)


def prefix_text(head: Head) -> str:
    """The part of every prompt that does not depend on the task; it ends where the user turn begins."""
    messages = [{"role": "system", "content": head.system}, {"role": "user", "content": _INSTRUCTION_MARK}]
    text = render(messages, head.tools)
    return text[: text.rindex(_USER)]


class _Data:
    """Endless batches of training sessions; each phase draws from its own generator."""

    def __init__(self, recipe: Recipe, fmt: HarnessFormat, head: Head, tokenizer: Tokenizer) -> None:
        self._recipe = recipe
        self._fmt = fmt
        self._head = head
        self._tokenizer = tokenizer
        self._whole = self._ids(prefix_text(head))

    def word_weights(self, weight: float) -> torch.Tensor | None:
        """Float32[vocab] for the loss; None when words count like everything else."""
        if weight == 1.0:
            return None
        weights = torch.ones(self._recipe.shape.vocab)
        for word in ALL:
            for ids in (self._ids(word), self._ids(f" {word}"), self._ids(f"{word}=")):
                if len(ids) == 1:
                    weights[ids[0]] = weight
        return weights

    def batches(self, phase: Phase) -> Iterator[tuple[list[int], list[Encoded]]]:
        """(prefix, sessions after it), for ever."""
        rng = Random(f"{phase.name}/{self._recipe.seed}")
        while True:
            prefix, cwd = self._prefix(phase, rng)
            yield prefix, [encode(self._tokenizer, self._session(phase, rng, cwd)) for _ in range(phase.batch)]

    def _prefix(self, phase: Phase, rng: Random) -> tuple[list[int], str]:
        if not phase.whole_prompt:
            return self._whole[len(self._whole) - rng.choice(_TAILS) :], "/app"
        if rng.random() >= self._recipe.augmented:
            return self._whole, "/app"
        cwd, install = _paths(rng)
        return self._ids(prefix_text(self._fmt.variant(self._head, cwd, install))), cwd

    def _session(self, phase: Phase, rng: Random, cwd: str) -> str:
        instance = build(rng.choice(FAMILIES), rng.randrange(10**9), "train")
        played = play(instance, rng, phase.mixture)
        return render(messages_of(instance, played, Head("", ()), self._fmt, cwd)[1:], ())

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _run(model: Qwen3ForCausalLM, phase: Phase, data: _Data, report: Report) -> None:
    optimizers = _optimizers(model, phase)
    weights = data.word_weights(phase.word_weight)
    model.train()
    recent = 0.0
    for step, (prefix, batch) in zip(range(phase.steps), data.batches(phase), strict=False):
        loss = prefix_loss(model, prefix, batch, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        share = rate_share(step, phase.steps)
        for optimizer, peak in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * share
            optimizer.step()
            optimizer.zero_grad()
        recent = loss.item() if step == 0 else 0.95 * recent + 0.05 * loss.item()
        if step % 50 == 49 or step == phase.steps - 1:
            report(f"{phase.name} {step + 1}/{phase.steps} loss {recent:.4f} cpu {time.process_time():.0f} s")


def _optimizers(model: Qwen3ForCausalLM, phase: Phase) -> list[tuple[torch.optim.Optimizer, float]]:
    """Muon for the matrices, without which copying takes several times the steps, and AdamW for the rest."""
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (matrices if parameter.dim() == 2 and "embed" not in name else others).append(parameter)
    return [
        (torch.optim.Muon(matrices, lr=phase.rate, weight_decay=0.0, momentum=0.95), phase.rate),
        (torch.optim.AdamW(others, lr=phase.other_rate, betas=(0.9, 0.98), weight_decay=0.0), phase.other_rate),
    ]


def rate_share(step: int, steps: int, warmup: int = 20) -> float:
    """Share of the peak learning rate at a step: up in a line, level, and down in a line over the last third.

    Level for long, since each kind of word begins to be copied at its own time and needs the full rate then.
    """
    return min(1.0, (step + 1) / warmup, max(0.02, 3 * (1 - step / steps)))


def _paths(rng: Random) -> tuple[str, str]:
    """A working directory and an installation as a sandbox on the host could have them."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789_"
    part = "".join(rng.choice(letters) for _ in range(rng.randrange(4, 12)))
    root = rng.choice(("/tmp", "/home/user", "/root", "/var/tmp", "/work", "/data/runs"))
    cwd = rng.choice((f"{root}/{part}/app", f"{root}/tugline-{part}", f"{root}/{part}", f"{root}/{part}/work"))
    return cwd, rng.choice(("/usr/lib", "/usr/local/lib", f"{root}/{part}/pi", "/home/user/.cache/tugline/pi"))


def _tokenizer_texts(recipe: Recipe, fmt: HarnessFormat, head: Head) -> list[str]:
    """The harness' prompt, counted a few times, and sessions of all families."""
    rng = Random(f"tokenizer/{recipe.seed}")
    texts = [prefix_text(head)] * 3
    for i in range(recipe.tokenizer_texts):
        instance = build(FAMILIES[i % len(FAMILIES)], i, "train")
        messages = messages_of(instance, play(instance, rng), Head("", ()), fmt)
        texts.append(render(messages[1:], ()))
    for mark in (*CONTROL_SPECIALS, *PLAIN_SPECIALS):
        texts = [text.replace(mark, "\n") for text in texts]
    return texts


def save(
    model: Qwen3ForCausalLM,
    tokenizer: Tokenizer,
    recipe: Recipe,
    fmt: HarnessFormat,
    out: Path,
    figures: dict[str, object],
) -> None:
    """Write the model directory: weights, tokenizer, template, stop ids and tugline.json."""
    out.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        eos_token_id=special_id(tokenizer, STOP), pad_token_id=special_id(tokenizer, PAD)
    )
    model.save_pretrained(out)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=STOP, pad_token=PAD, model_max_length=CONTEXT
    )
    wrapped.chat_template = template_text()
    wrapped.save_pretrained(out)
    note = {
        "parser": "qwen3",
        "stop": [STOP],
        "context": CONTEXT,
        "harnesses": [fmt.name],
        "recipe": asdict(recipe),
        "mixture": dict(MIXTURE),
        "figures": figures,
    }
    write_note(out, note)


def write_note(out: Path, note: dict[str, object]) -> None:
    """Write tugline.json."""
    (out / "tugline.json").write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")


def quick(recipe: Recipe) -> Recipe:
    """The same recipe with a step or two per phase: it proves the path and learns nothing."""
    return replace(recipe, phases=tuple(replace(phase, steps=2, batch=2) for phase in recipe.phases))
