# Two images of the gateway, both FROM scratch: the static binary, which includes the time zones, and root certificates.
# `make image` builds the files that are copied here, and then both images:
#
#   basegate:latest    the gateway
#   basegate:compose   the same with Docker Compose, for `launch` commands through the Docker socket
#
# The build pulls and compiles nothing, so it needs no registry. It needs bin/image, which `make image` (or `make
# image-files`) builds. docs/gpu-box.md says how to build the images on a machine without Go. The image of a release is made without
# Docker, for two architectures, by internal/tools/release; a test compares it with the first of these.

FROM scratch AS gateway
COPY bin/image/basegate /usr/local/bin/basegate
COPY bin/image/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
# The database's folder, owned by the user below: a new volume takes its owner from this folder.
COPY --chown=65532:65532 bin/image/data /var/lib/basegate
# A folder for backups, with the same owner for the same reason.
COPY --chown=65532:65532 bin/image/data /backup
ENV BASEGATE_CONFIG=/etc/basegate/config.yaml
# The image has no /tmp, and its root may be read-only: SQLite sorts large tables in files of this folder.
ENV SQLITE_TMPDIR=/var/lib/basegate
USER 65532:65532
WORKDIR /var/lib/basegate
VOLUME /var/lib/basegate
STOPSIGNAL SIGTERM
EXPOSE 8080 9090
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
	CMD ["basegate", "check", "--live"]
ENTRYPOINT ["basegate"]
CMD ["serve"]

FROM gateway AS compose
COPY bin/image/docker-compose /usr/local/bin/docker-compose

# The last stage is the default: a build without --target gives the gateway.
FROM gateway
