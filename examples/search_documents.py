"""Upload files, wait until they are indexed, and search them for passages.

Start the system as README.md says. A file may be a PDF, an image, a Markdown or a text file:

    python search_documents.py "whose notices are believed" README.md
"""

import sys
from pathlib import Path

from switchyard import Client
from switchyard.api.client import ApiError, WaitTimeout


def index_file(client: Client, file: Path) -> bool:
    document = client.upload(file, title=file.name)  # the same content again is the same document
    document = client.wait_for_document(document.document_id, timeout=300)
    if document.error is not None:
        print(f"{file}: {document.error.message}", file=sys.stderr)
        print(f"Try again: jobctl dead redrive {document.error.job_id}", file=sys.stderr)
    return document.error is None


def main(query: str, *files: str) -> None:
    with Client() as client:  # JOBS_API_URL, JOBS_API_KEY
        try:
            failed = [file for file in files if not index_file(client, Path(file))]
            for hit in client.search(query, limit=5).hits:
                print(f"{hit.score:.2f}  {hit.title}, page {hit.page}: {hit.snippet}")
        except (ApiError, WaitTimeout) as error:
            sys.exit(str(error))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
