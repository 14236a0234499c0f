# One image for every process of the service: the API, the workers and the migrations.

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/meshwright
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY docker/requirements.txt ./
RUN /opt/meshwright/bin/pip install --no-deps --require-hashes --requirement requirements.txt
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
COPY profiles profiles
COPY solver solver
COPY shell shell
COPY launchers launchers
COPY service service
COPY workers workers
COPY client client
COPY migrations migrations
RUN /opt/meshwright/bin/pip install --no-deps --no-build-isolation .

FROM python:3.11-slim-bookworm
# The kernel drops a SIGTERM that process 1 has no handler for, and Python has none while it imports.
RUN apt-get update && apt-get install --yes --no-install-recommends tini && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 meshwright && useradd --system --uid 10001 --gid 10001 --create-home meshwright \
    && install --directory --owner 10001 --group 10001 /var/lib/meshwright/verify
COPY --from=build /opt/meshwright /opt/meshwright
COPY docker/entrypoint.sh /usr/local/bin/meshwright-entrypoint
ENV PATH=/opt/meshwright/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /home/meshwright
EXPOSE 8420
ENTRYPOINT ["tini", "--", "meshwright-entrypoint"]
CMD ["meshwright", "serve"]
