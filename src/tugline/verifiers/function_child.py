"""The process in which an operator's function judges. argv: FD of the answer; standard input: the order."""

from __future__ import annotations

import importlib
import os
import resource
import sys
from pathlib import Path

import msgspec

from tugline.core.errors import VerifierError
from tugline.verifiers.function import Order, Work


def main() -> None:
    """Call the function, write what it returned. Exceptions end the process with a traceback in the log."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    for limit, most in ((resource.RLIMIT_AS, order.memory), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard < 0 else min(most, hard), hard))
    module, _, name = order.target.rpartition(":")
    if not module:
        raise VerifierError(f"function:{order.target} must be function:MODULE:NAME")
    sys.path.insert(0, os.getcwd())
    function = getattr(importlib.import_module(module), name)
    work = Work(order.task_id, order.instruction, Path(order.files), Path(order.session), order.metadata, order.options)
    answer = function(work)
    os.write(int(sys.argv[1]), msgspec.json.encode(answer, enc_hook=float))


if __name__ == "__main__":
    main()
