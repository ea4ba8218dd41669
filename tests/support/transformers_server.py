"""Run `transformers serve`: `python transformers_server.py PORT MODEL FOLDER`.

It runs in an environment of its own (`make test-llm`), without our libraries.
"""

import sys
from pathlib import Path


def convert(model: Path, folder: Path) -> None:
    """Convert a GGUF file into the form that `transformers serve` takes: as a GGUF file it refuses
    the model, because it names no architecture."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    being_made = folder.with_name(folder.name + ".new")
    made = AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name)
    # Its numbers are those of a plain model by now, and only such a model can be saved.
    made.hf_quantizer = None
    del made.config.quantization_config
    made.save_pretrained(being_made)
    tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    tokenizer.save_pretrained(being_made)
    being_made.rename(folder)


def main(port: str, model: str, folder: str) -> None:
    if not Path(folder).exists():
        convert(Path(model), Path(folder))
    from transformers.cli.transformers import main as run

    sys.argv[1:] = ["serve", folder, "--host", "127.0.0.1", "--port", port, "--device", "cpu"]
    run()


if __name__ == "__main__":
    main(*sys.argv[1:])
