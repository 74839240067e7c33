"""What the tabs' event handlers have in common."""

from __future__ import annotations

from typing import Any

Update = dict[Any, Any]
"""New values by component; components that are left out stay as they are."""
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""No spinner over what is shown, and no place in the list of public endpoints."""
