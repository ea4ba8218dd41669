"""Engines that cut references into fields: our own parser, GROBID, a language model."""
