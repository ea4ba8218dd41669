# Images of Switchyard. A container runs one process; the entry point is `jobctl`.
#
#   docker build -t switchyard .                    everything, all worker kinds included
#   docker build -t switchyard:slim --target slim . the engine, its API and the model lane: no document pipeline
#
# It runs as user 10001, with a read-only root file system. Mount a tmpfs on /tmp, and on /data the shared
# volume, unless files and index are in object storage.
ARG PYTHON=docker.io/library/python:3.11-slim-bookworm

# --- build: one layer for the libraries, which rarely change, and one for our own code ---
FROM ${PYTHON} AS libraries
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python -m venv /opt/switchyard
COPY requirements/slim.txt .
RUN /opt/switchyard/bin/pip install --quiet --require-hashes -r slim.txt

FROM ${PYTHON} AS wheel
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python -m venv /opt/build
COPY requirements/build.txt .
RUN /opt/build/bin/pip install --quiet --require-hashes -r build.txt
COPY pyproject.toml ./
COPY src src
RUN /opt/build/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheel .

FROM libraries AS installed-slim
COPY --from=wheel /wheel /wheel
RUN /opt/switchyard/bin/pip install --quiet --no-deps --no-index /wheel/*.whl

FROM libraries AS all-libraries
COPY requirements/image.txt .
RUN /opt/switchyard/bin/pip install --quiet --require-hashes -r image.txt

FROM all-libraries AS installed
COPY --from=wheel /wheel /wheel
RUN /opt/switchyard/bin/pip install --quiet --no-deps --no-index /wheel/*.whl

# --- image: no compiler, no sources, not root -----------------------------------------------------
FROM ${PYTHON} AS base
RUN groupadd --gid 10001 switchyard \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin switchyard \
 && install -d -o 10001 -g 10001 -m 0770 /data
ENV PATH=/opt/switchyard/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp \
    JOBS_DATA_DIR=/data JOBS_LOG_FORMAT=json
WORKDIR /data
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["jobctl"]
CMD ["--help"]

FROM base AS slim
COPY --from=installed-slim /opt/switchyard /opt/switchyard

FROM base AS full
COPY --from=installed /opt/switchyard /opt/switchyard
