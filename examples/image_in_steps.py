"""A template from an image in steps: files are copied, a server is started once and captured running.

Every sandbox from the template begins where the server already answers.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from cove import Image, Sandbox, Template

PAGE = "the page of 'every' sandbox\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "index.html").write_text(PAGE)
        image = (
            Image.debian()
            .copy(directory, "/srv/site")
            .env({"PORT": "8000"})
            .workdir("/srv/site")
            .user("nobody")
            .cmd("exec python3 -m http.server $PORT")
        )
        # With packages, say what the build may reach: apt("ripgrep") and pip("numpy") need no more than the default.
        template = Template.build("example-site", image=image, network="none", ready="curl -sf localhost:8000")
    try:
        with Sandbox(template=template) as box:
            print("user:", box.run("id -un").stdout.strip())
            print("page:", box.run("curl -sf localhost:8000").stdout.strip())
    finally:
        template.delete()


if __name__ == "__main__":
    main()
