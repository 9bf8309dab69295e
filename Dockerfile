# docker build -t planner . && docker run --rm -v "$PWD:/job" planner plan llama3.1-70b 16xdgx-h100
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY planner planner
COPY hwdb hwdb
COPY models models
RUN python -m venv /opt/planner && /opt/planner/bin/pip install --no-cache-dir .

FROM python:3.12-slim
COPY --from=build /opt/planner /opt/planner
RUN useradd --create-home planner
USER planner
WORKDIR /job
ENV PATH=/opt/planner/bin:$PATH
ENTRYPOINT ["planner"]
CMD ["--help"]
