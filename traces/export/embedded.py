"""A page inside another one, such as a notebook: in a frame that cannot reach beyond itself."""

from __future__ import annotations

import gzip
from base64 import b64encode
from html import escape

_PAGE = """<!doctype html><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<noscript>{{without}}</noscript>
<script>{
  const bytes = Uint8Array.from(atob("{{packed}}"), (character) => character.charCodeAt(0));
  const page = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  new Response(page).text().then((text) => { document.open(); document.write(text); document.close(); });
}</script>"""


def embedded(page: str, label: str, *, without: str, height: int) -> str:
    """Return a sandboxed frame with a page (HTML) that requests nothing.

    The page is compressed, since the viewer's script is in every page. The frame has an origin of
    its own: it reads nothing of the page around it. `without` is HTML for a frame without scripts.
    The frame has `height` pixels, scrolls, and is resized at its corner.
    """
    packed = b64encode(gzip.compress(page.encode("utf-8", "replace"), mtime=0)).decode()
    source = _PAGE.replace("{{without}}", without).replace("{{packed}}", packed)
    style = f"box-sizing: border-box; width: 100%; height: {height}px; border: 1px solid #8884; border-radius: 6px; resize: vertical"
    return (
        f'<iframe sandbox="allow-scripts" title="{escape(label)}" style="{style}" '
        f'srcdoc="{escape(source)}"></iframe>'
    )
