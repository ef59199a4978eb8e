"""Sessions from queue to verdict: stages, retries, resumption, and the proofs that end a run."""
