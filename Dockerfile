# Two images of the gateway, both from scratch: the static binary, root certificates, and nothing else (time zones are
# within the binary). `make image` builds what is copied here, and then both:
#
#   basegate:latest    the gateway
#   basegate:compose   the same with Docker Compose, for `launch` commands through the Docker socket
#
# Nothing is pulled and nothing is compiled in here, so it builds without a registry; without `make image` before it,
# bin/image is missing. docs/gpu-box.md says how a machine without Go builds it.

FROM scratch AS gateway
COPY bin/image/basegate /usr/local/bin/basegate
COPY bin/image/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
# The folder of the database, owned by the user below: a new volume takes its owner from here.
COPY --chown=65532:65532 bin/image/data /var/lib/basegate
USER 65532:65532
WORKDIR /var/lib/basegate
VOLUME /var/lib/basegate
STOPSIGNAL SIGTERM
EXPOSE 8080 9090
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
	CMD ["basegate", "check", "--live", "--config", "/etc/basegate/config.yaml"]
ENTRYPOINT ["basegate"]
CMD ["serve", "--config", "/etc/basegate/config.yaml"]

FROM gateway AS compose
COPY bin/image/docker-compose /usr/local/bin/docker-compose

# The last one is what a build without --target gives.
FROM gateway
