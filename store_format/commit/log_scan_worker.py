"""The process that `log_scan.py` starts for each core: `python -m store_format.commit.log_scan_worker`."""

from __future__ import annotations

from store_format.commit.log_scan import serve

if __name__ == "__main__":
    serve()
