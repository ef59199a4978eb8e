"""The control plane over HTTP: who holds the token opens and ends sessions, reads trajectories and metrics."""
