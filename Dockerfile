# cflow-serve in an image of its own: docker build -t cflow . && docker run -p 8080:8080 -v /path/to/models:/models -e CFLOW_API_KEY=… cflow
# Kernels of every instruction set are in the engine, and the CPU is asked when it starts: one image serves all.
FROM node:22-bookworm AS build
WORKDIR /cflow
COPY . .
RUN npm ci && npm run build && npm prune --omit=dev --ignore-scripts

FROM node:22-bookworm-slim
ENV NODE_ENV=production
WORKDIR /cflow
COPY --from=build /cflow/package.json ./
COPY --from=build /cflow/node_modules node_modules
COPY --from=build /cflow/packages packages
USER node
VOLUME /models
EXPOSE 8080
# A model of many gigabytes takes its time to load.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10m \
  CMD ["node", "-e", "fetch('http://127.0.0.1:8080/health').then(({ ok }) => process.exit(ok ? 0 : 1), () => process.exit(1))"]
# Node itself gets SIGTERM and drains; CFLOW_API_KEY is needed for a host that others reach.
ENTRYPOINT ["node", "packages/serve/bin/cflow-serve.js", "--host", "0.0.0.0"]
CMD ["/models/model.cflow"]
