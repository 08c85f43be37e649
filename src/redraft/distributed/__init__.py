"""Many engines on a Ray cluster: the server as a Ray Serve application, a file of requests through Ray Data.

serve run redraft.distributed:app            one replica of nano
redraft serve --ray --print-config > f.yaml  the same with a command's flags, for `serve deploy` and KubeRay
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def app(args: Mapping[str, Any]) -> Any:
    """The Ray Serve application of `args`, the fields of `redraft.distributed.fleet.Fleet`. Raises RequestError."""
    from redraft.distributed.fleet import fleet_of
    from redraft.distributed.serving import application

    return application(fleet_of(args))
