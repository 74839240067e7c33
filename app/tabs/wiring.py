"""Types and settings shared by the tabs' event handlers."""

from __future__ import annotations

from typing import Any

Update = dict[Any, Any]
"""New values by component; other components stay unchanged."""
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""Settings of an event: no spinner, no public endpoint."""
