"""Documents and queries: our own, as they stand in the two text files, and public collections."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent
_HEADING = re.compile(r"\[(?P<name>\S+)\] (?P<title>.+)")
NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Document:
    name: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Query:
    document: str | None
    """The one that answers it; None where none does."""
    kind: str
    text: str


def documents() -> list[Document]:
    found = []
    for block in (_FOLDER / "documents.txt").read_text().strip().split("\n\n"):
        heading, _, text = block.partition("\n")
        match = _HEADING.fullmatch(heading)
        if match is None:
            raise ValueError(f"no heading: {heading}")
        found.append(Document(match["name"], match["title"], f"{match['title']}\n\n{text}"))
    return found


def queries() -> list[Query]:
    lines = (_FOLDER / "queries.txt").read_text().splitlines()
    parts = [line.split(" | ", 2) for line in lines if line and not line.startswith("#")]
    return [Query(None if name == NOTHING else name, kind, text) for name, kind, text in parts]


@dataclass(frozen=True, slots=True)
class Collection:
    """A public test collection: documents, questions, and which documents answer each."""

    name: str
    documents: dict[str, str]
    questions: dict[str, str]
    relevant: dict[str, set[str]]
    """Of each question, the documents that were judged to answer it, however well."""


def collections_in(folder: Path) -> list[Collection]:
    """The collections of a folder, in the forms in which they are handed round: SMART (`cran.all`,
    `cran.qry`, `cranqrel`), TREC (`npl_doc-text.trec`, `npl_query-text.trec`, `npl_qrels`), and
    JSON lines (`corpus.jsonl`, `queries.jsonl`, `qrels/*.tsv`)."""
    found = []
    for path in sorted(folder.iterdir()):
        lower = path.name.lower()
        if lower == "corpus.jsonl":
            found.append(_from_lines(folder))
        elif lower.endswith(".all") or "doc" in lower:
            found.append(_from_files(path))
    if not found:
        raise ValueError(f"no collection in {folder}")
    return found


def _from_files(documents: Path) -> Collection:
    name = re.split(r"[._-]", documents.name)[0]
    beside = [each for each in documents.parent.iterdir() if each.is_file()]
    own = [each for each in beside if each.name.lower().startswith(name.lower())]
    files = {
        kind: next(
            each
            for each in (*own, *beside)
            if any(part in each.name.lower() for part in parts) and each != documents
        )
        for kind, parts in (("questions", ("qry", "que")), ("judgements", ("rel",)))
    }
    read = _trec if documents.suffix == ".trec" else _smart
    # Judgements count the questions: some printed numbers have gaps.
    questions = read(files["questions"])
    numbered = {str(at): text for at, text in enumerate(questions.values(), 1)}
    relevant = _judgements(files["judgements"].read_text())
    return Collection(name, read(documents), numbered, relevant)


def _smart(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for block in re.split(r"(?m)^\.I ", path.read_text(errors="replace"))[1:]:
        number, _, rest = block.partition("\n")
        fields = dict(re.findall(r"(?ms)^\.([A-Z])[ \t]*\n(.*?)(?=^\.[A-Z][ \t]*$|\Z)", rest))
        title, text = (fields.get(key, "").strip() for key in "TW")
        said = text if text.startswith(title) else f"{title}\n\n{text}"
        found[str(int(number))] = said.strip()
    return found


def _trec(path: Path) -> dict[str, str]:
    text = path.read_text(errors="replace")
    pairs = re.findall(r"(?s)<(?:DOCNO|num)>\s*(\S+?)\s*</(?:DOCNO|num)>(.*?)</(?:DOC|top)>", text)
    return {number: re.sub(r"<[^>]*>", " ", said).strip() for number, said in pairs}


def _from_lines(folder: Path) -> Collection:
    def texts(name: str) -> dict[str, str]:
        lines = map(json.loads, (folder / name).read_text().splitlines())
        return {
            line["_id"]: "\n\n".join(filter(None, (line.get("title"), line["text"])))
            for line in lines
        }

    tables = sorted((folder / "qrels").glob("*.tsv"))
    judged = next((each for each in tables if each.name == "test.tsv"), tables[0])
    relevant = _judgements(judged.read_text())
    return Collection(folder.name, texts("corpus.jsonl"), texts("queries.jsonl"), relevant)


def _judgements(text: str) -> dict[str, set[str]]:
    """`question document grade`, `question 0 document grade`, or, of a pair that counts by being
    there, `question document 0 0.0`."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        parts = line.split()
        if len(parts) < 3 or parts[0].startswith("query"):
            continue
        is_trec = len(parts) == 4 and parts[1] == "0"
        document, grade = (parts[2], parts[3]) if is_trec else (parts[1], parts[2])
        if float(grade) > 0 or (len(parts) == 4 and not is_trec):
            found.setdefault(parts[0].lstrip("0") or "0", set()).add(document)
    return found
