"""The warden: one small process per provider that owns every mount and every sandboxed process of a run.

It is started as a program of its own (`main.py`), imports the standard library only and is single threaded, because
entering namespaces and forking safely need that. The service talks to it over one socket; when that socket closes,
for whatever reason, the warden kills everything it started and goes. All mounts live in the warden's private mount
namespace, so they end with it too: a killed run leaves nothing mounted on the host.
"""
