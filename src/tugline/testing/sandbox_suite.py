"""What every sandbox provider must do. Run it on your own: `await run_suite(provider, scratch_dir)`.

Each check is an async function that gets a `Bench` and raises AssertionError with what went wrong. The sandboxes need
sh, bash and the usual file tools inside; nothing else.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tugline.core.contracts import SandboxProvider
from tugline.core.errors import SandboxError, describe
from tugline.testing.sandbox_bench import Bench, Check, alive
from tugline.testing.sandbox_commands import (
    check_background_child_does_not_hold_the_run,
    check_cancellation_kills_everything,
    check_close,
    check_deadline_kills_everything,
    check_eight_at_once,
    check_environment_is_clean,
    check_escaped_child_dies_with_the_command,
    check_exit_codes,
    check_large_arguments,
    check_output_arrives_while_the_command_runs,
    check_output_is_capped_not_blocking,
    check_secrets_of_other_processes_are_hidden,
    check_stdin_and_outputs,
)
from tugline.testing.sandbox_files import (
    check_clone_for_judging,
    check_links_never_lead_to_the_host,
    check_prepared_snapshot_is_copied_on_write,
    check_read_of_absent_huge_and_odd,
    check_upload,
    check_what_root_changes_stays,
    check_write_and_read,
)
from tugline.testing.sandbox_isolation import (
    check_disk_limit,
    check_gateway_is_closed_after_the_run,
    check_host_is_out_of_reach,
    check_memory_limit,
    check_only_the_gateway_is_reachable,
    check_out_of_memory_is_told_from_other_ends,
    check_process_limit,
    check_same_port_is_never_confused,
)

__all__ = ["CHECKS", "Bench", "Check", "alive", "run_suite"]


async def run_suite(provider: SandboxProvider, scratch: Path) -> list[str]:
    """All checks that apply, one after the other. One line per failure; empty = the provider keeps the contract."""
    failures = []
    for check in CHECKS:
        if check.isolating and not provider.isolating:
            continue
        place = scratch / check.name
        await asyncio.to_thread(place.mkdir, parents=True)
        try:
            await check.run(Bench(provider, place))
        except (AssertionError, SandboxError, TimeoutError) as err:
            failures.append(f"{check.name}: {describe(err)}")
    return failures


CHECKS: tuple[Check, ...] = (
    Check(check_exit_codes),
    Check(check_stdin_and_outputs),
    Check(check_environment_is_clean),
    Check(check_secrets_of_other_processes_are_hidden, isolating=True),
    Check(check_background_child_does_not_hold_the_run),
    Check(check_deadline_kills_everything),
    Check(check_cancellation_kills_everything),
    Check(check_escaped_child_dies_with_the_command),
    Check(check_output_arrives_while_the_command_runs),
    Check(check_output_is_capped_not_blocking),
    Check(check_write_and_read),
    Check(check_read_of_absent_huge_and_odd),
    Check(check_links_never_lead_to_the_host),
    Check(check_upload),
    Check(check_prepared_snapshot_is_copied_on_write),
    Check(check_what_root_changes_stays, isolating=True),
    Check(check_clone_for_judging),
    Check(check_disk_limit, isolating=True),
    Check(check_memory_limit, isolating=True),
    Check(check_out_of_memory_is_told_from_other_ends, isolating=True),
    Check(check_process_limit, isolating=True),
    Check(check_host_is_out_of_reach, isolating=True),
    Check(check_only_the_gateway_is_reachable, isolating=True),
    Check(check_same_port_is_never_confused, isolating=True),
    Check(check_gateway_is_closed_after_the_run, isolating=True),
    Check(check_eight_at_once),
    Check(check_large_arguments),
    Check(check_close),
)
