"""Metrics as Prometheus reads them."""

from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]
        self.names = {sample.name for sample in self.samples}

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with this name and these labels; 0 without any."""
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )
