# What `make deps` installs, in a container. The repository itself is mounted, so that what you edit
# and build stays when the container ends:
#
#   docker build -t ultrascale .
#   docker run --rm -it --shm-size 1g -u "$(id -u):$(id -g)" -v "$PWD":/ultrascale ultrascale
#   make demo
#
# MPI's ranks talk through /dev/shm, of which Docker gives 64 MB: too little for eight of them.
# On a machine with NVIDIA GPUs, where NVIDIA's container toolkit is installed, take an image that
# has the CUDA Toolkit 13 and NCCL, and start it with --gpus all:
#
#   docker build -t ultrascale-gpu --build-arg BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04 .
#
# classroom/kit/WHERE.md says what of this was tried.
ARG BASE=debian:12
FROM $BASE
ENV LANG=C.UTF-8 HOME=/tmp
RUN apt-get update && apt-get install -y --no-install-recommends \
    ca-certificates git make g++ less nano && rm -rf /var/lib/apt/lists/*
WORKDIR /ultrascale
COPY Makefile .
COPY tests/deps.sh tests/
RUN make deps && rm -rf /var/lib/apt/lists/*
CMD ["bash"]
