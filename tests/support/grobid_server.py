"""A small real server that answers as GROBID does: TEI for references as text, and for a PDF.

It returns for a reference what a test has put into `structures` under the reference's text, and a
title alone for others.
"""

from __future__ import annotations

from urllib.parse import parse_qs
from xml.sax.saxutils import escape, quoteattr

from tests.support.site import Exchange, Request, Site

KUHN = (
    "<analytic/><monogr><title level='m'>The structure of scientific revolutions</title>"
    "<author><persName><forename type='first'>T</forename><forename type='middle'>S</forename>"
    "<surname>Kuhn</surname></persName></author><imprint><date type='published' when='1962'/>"
    "<publisher>University of Chicago Press</publisher></imprint></monogr>"
)


class GrobidServer(Site):
    """Use as a context manager; `origin` is what JOBS_GROBID_URL takes."""

    def __init__(self) -> None:
        super().__init__()
        self.structures: dict[str, str] = {}
        """Contents of the `biblStruct`, by the reference's text."""
        self.in_pdf: list[tuple[str, str]] = []
        """References that any PDF has: text and `coords`."""
        self.citations: list[list[str]] = []
        """The citations of each request."""

    def answer(self, exchange: Exchange, request: Request) -> None:
        """Answer as GROBID 0.8 would."""
        if request.path == "/api/processCitationList":
            citations = parse_qs(request.body.decode(), keep_blank_values=True)["citations"]
            self.citations.append(citations)
            body = tei([self._entry(n, each) for n, each in enumerate(citations)])
        elif request.path == "/api/processReferences" and b"%PDF" in request.body:
            references = self.in_pdf
            body = tei(
                [
                    self._entry(n, text, coords_attribute)
                    for n, (text, coords_attribute) in enumerate(references)
                ]
            )
        else:
            exchange.send(404, b"")
            return
        exchange.send(200, body, content_type="application/xml")

    def _entry(self, number: int, text: str, coords: str = "") -> str:
        structure = self.structures.get(text) or (
            f"<analytic><title level='a'>{escape(text.split('. ')[1])}</title></analytic><monogr/>"
            if ". " in text
            else "<monogr/>"
        )
        coords_attribute = f" coords={quoteattr(coords)}" if coords else ""
        raw = f"<note type='raw_reference'>{escape(text)}</note>"
        return f"<biblStruct{coords_attribute} xml:id='b{number}'>{structure}{raw}</biblStruct>"


def tei(entries: list[str]) -> bytes:
    """Return an answer of the service."""
    return (
        "<?xml version='1.0' encoding='UTF-8'?>\n"
        "<TEI xml:space='preserve' xmlns='http://www.tei-c.org/ns/1.0'><teiHeader/><text><front/>"
        f"<body/><back><div><listBibl>{''.join(entries)}</listBibl></div></back></text></TEI>"
    ).encode()
