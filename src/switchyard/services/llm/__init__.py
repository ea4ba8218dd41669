"""Work that language models do, and what stands in for them where there is none."""
