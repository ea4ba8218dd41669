"""Run llama.cpp's own HTTP server: `python llama_server.py PORT MODEL CALLS`.

The package `xllamacpp` brings it. It runs in an environment of its own (`make test-llm`), without
our libraries.
"""

import sys
import threading

import xllamacpp

CONTEXT = 2048
"""Tokens of a request and its answer together."""


def main(port: str, model: str, calls: str) -> None:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.hostnames, parameters.port = ["127.0.0.1"], int(port)
    # As many requests at once as CALLS; the others wait in the server.
    parameters.n_parallel = int(calls)
    parameters.n_ctx = CONTEXT * int(calls)
    # The threads of one token wait for each other, in vain on a busy machine.
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
