"""``python -m meshwright.service.api`` prints the OpenAPI document of this version."""

from __future__ import annotations

import json
import sys

from meshwright.service.api.app import create_app
from meshwright.service.settings import Settings


def main() -> None:
    """Write the document to stdout, as in docs/openapi.json."""
    document = create_app(Settings(database_url="sqlite:///unused.db")).openapi()
    sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
