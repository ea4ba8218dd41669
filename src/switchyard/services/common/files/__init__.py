"""Bytes in and out: storage, uploads, downloads, and what kind of file it is."""
