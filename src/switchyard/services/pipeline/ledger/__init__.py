"""The ledger of documents, crawls, the graph, and answers of catalogues."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger


class PipelineLedger:
    """The repositories of the document pipeline, in the database of a ledger. Cheap to make, and
    not to be closed. SQLAlchemy is only loaded when one is made, as job types are listed without
    it."""

    def __init__(self, ledger: Ledger) -> None:
        from switchyard.services.pipeline.ledger.catalogue_answers import CatalogueAnswerRepository
        from switchyard.services.pipeline.ledger.crawls import CrawlRepository
        from switchyard.services.pipeline.ledger.document_classes import DocumentClassRepository
        from switchyard.services.pipeline.ledger.documents import DocumentRepository
        from switchyard.services.pipeline.ledger.graph_rankings import GraphRankings
        from switchyard.services.pipeline.ledger.graph_reads import GraphReads
        from switchyard.services.pipeline.ledger.graph_walks import GraphWalks
        from switchyard.services.pipeline.ledger.graph_writes import GraphWrites

        core = ledger.core
        self.catalogue_answers = CatalogueAnswerRepository(core)
        self.crawls = CrawlRepository(core)
        self.documents = DocumentRepository(core)
        self.document_classes = DocumentClassRepository(core)
        self.graph = GraphWrites(core)
        self.graph_reads = GraphReads(core)
        self.graph_walks = GraphWalks(core)
        self.graph_rankings = GraphRankings(core)
