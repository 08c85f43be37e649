# redraft's server. Processor or CUDA, by the torch that goes in:
#
#   docker build --tag redraft .                                      torch as the index offers it (CUDA 13 on x86-64)
#   docker build --build-arg TORCH_INDEX=URL --tag redraft:cpu .      the URL that pytorch.org's selector shows for "CPU"
#
#   docker run --publish 8642:8642 --env REDRAFT_API_KEYS=choose-one redraft
#   docker run --gpus all --volume weights:/weights … redraft serve OWNER/NAME --host 0.0.0.0

FROM python:3.12-slim-trixie AS wheel
WORKDIR /redraft
COPY pyproject.toml README.md LICENSE ./
COPY recipes recipes
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-trixie
ARG TORCH_INDEX=""

# Triton compiles a small C stub for each kernel that it launches: without a compiler there are no kernels on a GPU.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 redraft \
    && install --directory --owner redraft /weights

# torch is gigabytes and changes seldom: a layer of its own, below our code.
COPY constraints.txt /constraints.txt
RUN pip install --no-cache-dir --constraint /constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch

COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --constraint /constraints.txt /wheels/*.whl

USER 1000
WORKDIR /home/redraft
# Where `redraft pull` puts checkpoints, and where `serve` looks for them.
ENV HF_HOME=/weights
VOLUME /weights
EXPOSE 8642
HEALTHCHECK --start-period=10m --interval=30s --timeout=5s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8642/live', timeout=4)"]
ENTRYPOINT ["redraft"]
CMD ["serve", "--host", "0.0.0.0"]
