"""Programs that run inside a judging sandbox, on whatever Python 3.7 or later is there. Standard library only.

`parent` owns the results and starts one `worker` per test file; a worker runs pytest, and with it the code that is
judged. Nothing here is imported by Tugline itself but the constants.
"""
