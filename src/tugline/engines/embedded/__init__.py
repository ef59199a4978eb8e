"""The policy in a process of its own: torch and transformers on this machine, token ids in and out.

`engine` is the parent's side, `server` the child's; `wire` is what they say to each other.
Only the child imports torch.
"""
