"""What the drivers of engines behind HTTP share: the client, the circuit breaker, the driver's frame."""
