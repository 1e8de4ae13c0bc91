# Two images: `runtime`, foreload with its commands, and `perf`, which adds Linux perf. See compose.yaml.
FROM python:3.11.13-slim-bookworm AS build
# (Debian drops a version once there is a newer one, so that a pinned one could not be built again.)
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ libjpeg-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/foreload
ENV PATH=/opt/foreload/bin:$PATH
WORKDIR /source
COPY constraints.txt .
# The index to install torch from, such as that of its builds for CPUs, which are far smaller; by default, pip's own.
ARG TORCH_INDEX=""
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} --constraint constraints.txt torch
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt '.[cli,plots,serve]'

FROM python:3.11.13-slim-bookworm AS runtime
RUN useradd --uid 1000 --create-home foreload \
    && install --directory --owner=foreload --group=foreload /results
COPY --from=build /opt/foreload /opt/foreload
ENV PATH=/opt/foreload/bin:$PATH
USER 1000
WORKDIR /results
CMD ["foreload", "doctor"]

FROM runtime AS perf
USER 0
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends linux-perf \
    && rm -rf /var/lib/apt/lists/*
COPY scripts/flame_graph.py scripts/perf_analysis.sh /opt/foreload/scripts/
USER 1000
CMD ["/opt/foreload/scripts/perf_analysis.sh", "/results"]
