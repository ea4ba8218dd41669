"""The catalogues of works by the names that the settings give them."""

from __future__ import annotations

from collections.abc import Mapping

from switchyard.services.pipeline.citations.linking.catalogue import Catalogue
from switchyard.services.pipeline.citations.linking.crossref import Crossref
from switchyard.services.pipeline.citations.linking.openalex import OpenAlex
from switchyard.services.pipeline.citations.linking.wikidata import Wikidata

CATALOGUES: Mapping[str, type[Catalogue]] = {
    each.name: each for each in (OpenAlex, Crossref, Wikidata)
}
