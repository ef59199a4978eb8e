"""A policy small enough for tests: random weights, a tokenizer trained on the spot."""

from __future__ import annotations

from pathlib import Path

import msgspec

SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>",
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
)  # fmt: skip
_TEMPLATE = (
    "{%- for m in messages -%}"
    "{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
_CORPUS = (
    "The file notes.txt holds the value of the key. Read it, then write the answer to result.txt.",
    '{"name": "write", "arguments": {"path": "result.txt", "content": "hello world"}}',
    "def main(argv):\n    for name in argv:\n        print(name)\n    return 0\n",
    "system user assistant tool reasoning because therefore first second number 0 1 2 3 4 5 6 7 8 9",
)


def make_tokenizer_dir(path: Path, *, vocab: int = 512, context: int = 2048) -> Path:
    """A model directory without weights, enough for the scripted engine. Returns `path`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        min_frequency=1,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in SPECIALS[:3]])
    tokenizer.add_tokens([AddedToken(s, normalized=False, special=False) for s in SPECIALS[3:]])
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")
    settings = {"parser": "qwen3", "stop": ["<|im_end|>"], "context": context}
    (path / "tugline.json").write_bytes(msgspec.json.encode(settings))
    return path


def make_tiny_model(path: Path, *, seed: int = 0, context: int = 2048) -> Path:
    """A whole model directory: Qwen3, 2 layers, hidden 64, vocabulary 512, random but peaked. Needs torch.

    The same seed gives the same weights; another seed with the same tokenizer serves as "new weights".
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    make_tokenizer_dir(path, context=context)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        Qwen3ForCausalLM(config).to(torch.float32).save_pretrained(path)
    return path
