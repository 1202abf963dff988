"""Charts as PNG in the kept notebooks, for where no Vega runs, such as a repository's page.

Only `notebooks.run` uses it: in JupyterLab altair shows charts alive.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any


def charts_as_pictures() -> None:
    """Makes altair show charts as PNG in this process."""
    import altair as alt

    alt.renderers.register("pictures", _picture)
    alt.renderers.enable("pictures")


def _picture(spec: dict[str, Any], **_: object) -> tuple[dict[str, Any], dict[str, Any]]:  # Any: JSON
    """With a digest of the data: fonts and versions change a picture's bytes, a test wants to know whether it
    shows something else.
    """
    import vl_convert

    data = json.dumps(spec["datasets"], sort_keys=True).encode()
    title = spec["title"]
    bundle = {
        "text/plain": f"<chart: {title if isinstance(title, str) else title['text']}>",
        "image/png": base64.b64encode(vl_convert.vegalite_to_png(spec)).decode(),
    }
    return bundle, {"image/png": {"data_sha256": hashlib.sha256(data).hexdigest()}}
