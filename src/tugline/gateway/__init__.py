"""The data plane: harness calls in, token ids to the engine, verified and durable turns, replies out.

Owns the sockets that agents reach, session secrets, admission and delivery. Decides nothing about rewards or traces.
"""
