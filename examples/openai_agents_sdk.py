"""The OpenAI Agents SDK, unmodified, trained: groups of sessions, advantages, gradient steps, new weights served.

pip install 'tugline[embedded]' openai-agents
python examples/openai_agents_sdk.py [--steps 4] [--sessions 12] [--engine embedded] [--out RUN]
"""

import argparse
import asyncio
import logging
from pathlib import Path

import agents
from openai import AsyncOpenAI

import tugline
from tugline.core.columns import floats_array, ids_array
from tugline.core.trace import Trajectory
from tugline.trajectory.advantages import broadcast

TASK = 'Create a file named `recipe.txt` that contains the text "honey".'
TEMPERATURE = 0.7


async def run_agent(base_url: str, key: str) -> dict[str, str]:
    """One run of an SDK agent with a function tool: the files it wrote. Knows nothing of Tugline."""
    files: dict[str, str] = {}

    @agents.function_tool
    def write(path: str, content: str) -> str:
        """Write a file."""
        files[path] = content
        return f"Successfully wrote {len(content)} bytes to {path}"

    async with AsyncOpenAI(base_url=base_url, api_key=key) as client:
        model = agents.OpenAIResponsesModel(model="policy", openai_client=client)
        agent = agents.Agent(
            name="writer", instructions="You are an assistant. Use the tools.", tools=[write], model=model
        )
        await agents.Runner.run(agent, TASK, max_turns=6)
    return files


async def attempt(gateway: tugline.LocalGateway, group: str) -> Trajectory:
    """One session: the agent's run, its reward, its training rows."""
    session = await gateway.open(group=group, task=TASK, max_turns=6, ttl=120)
    try:
        files = await run_agent(session.openai, session.key)
        await gateway.end(session.session, 1.0 if files.get("recipe.txt", "").strip() == "honey" else 0.0)
    except agents.exceptions.AgentsException as err:
        await gateway.end(session.session, 0.0, outcome="agent_failed", reason=type(err).__name__)
    return await gateway.trajectory(session.session)


class Trainer:
    """Policy gradient on the rows: log-probabilities of the sampled tokens, times the session's advantage."""

    def __init__(self, model_dir: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        torch.set_num_threads(1)
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-4, weight_decay=0.0)

    def step(self, group: list[Trajectory], out: Path) -> float:
        """One gradient step; the new weights go to `out`. Returns the largest difference (nats) between the
        log-probabilities that the engine sampled with and those computed here: the same tokens, the same policy."""
        torch, worst = self.torch, 0.0
        rows = [row for row in broadcast(group) if row.advantage is not None]
        for row in rows:
            ids = torch.tensor(ids_array(row.trace.token_ids).tolist())
            mine = torch.tensor(list(row.trace.loss_mask[1:]), dtype=torch.bool)
            sampled_with = torch.tensor(floats_array(row.trace.logprobs)[1:].copy())[mine]
            logits = self.model(ids[None]).logits[0, :-1] / TEMPERATURE
            logprobs = logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0][mine]
            worst = max(worst, float((logprobs.detach() - sampled_with).abs().max()))
            ratio = (logprobs - sampled_with).exp()
            loss = -(row.advantage * ratio).mean() * row.trace.loss_weight / len(group)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.model.save_pretrained(out)
        return worst


def report(name: str, group: list[Trajectory]) -> None:
    """Rewards and the policy versions that sampled the tokens."""
    rewards = [t.reward or 0.0 for t in group]
    versions = sorted({version for t in group for row in t.traces for _, version in row.version_runs})
    print(f"{name}: mean reward {sum(rewards) / len(rewards):.2f} of {len(group)} sessions, policy versions {versions}")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=12)
    parser.add_argument("--engine", default="embedded")
    parser.add_argument("--out")
    args = parser.parse_args()
    agents.set_tracing_disabled(True)
    logging.getLogger("openai.agents").setLevel(logging.CRITICAL)  # a policy that learns calls tools that are not there
    async with tugline.local_gateway(
        engine=args.engine, out=args.out, sampling=f"temperature={TEMPERATURE},max_tokens=96"
    ) as gateway:
        trainer = Trainer(gateway.engine.model_dir) if args.steps else None
        for version in range(args.steps + 1):
            group = list(await asyncio.gather(*(attempt(gateway, f"step-{version}") for _ in range(args.sessions))))
            report(f"step {version}", group)
            if trainer is not None and version < args.steps:
                weights = gateway.run / "weights" / str(version + 1)
                worst = await asyncio.to_thread(trainer.step, group, weights)
                await gateway.load_weights(weights, version + 1)
                print(f"  one gradient step; trainer and engine differ by {worst:.1e} nats at most")
        print(f"tugline verify {gateway.run}")


if __name__ == "__main__":
    asyncio.run(main())
