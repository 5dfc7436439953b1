#!/usr/bin/env bash
# Installs those of the Debian packages named as arguments whose header, library or tool is not
# found. As root it uses apt; without root it downloads them and what they depend on, and unpacks
# everything under .deps/, where the Makefile looks. In a conda environment, or without apt, it says
# what is missing and how conda installs it, and ends with 1.
#
# `make deps` says where its builds look: the compiler CXX, the flags FLAGS and those of MPI
# MPI_FLAGS, the launcher MPIRUN, and the prefix of a conda environment (CONDA).
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.deps/usr/bin:$PATH:/usr/sbin"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Where apt can install it, only MPICH counts as MPI, and OpenBLAS must use OpenMP's threads.
# Elsewhere any MPI and any OpenBLAS will do.
any=1
[ -n "${CONDA:-}" ] || ! command -v apt-get >/dev/null || any=0

# builds CONDITION VALUE FLAG...: is the preprocessor's CONDITION true, does a program build, with
# these flags, too, and is the VALUE true that it computes?
builds() {
    printf '#if !(%s)\n#error\n#endif\nint main() { return !(%s); }\n' "$1" "$2" |
        ${CXX:-g++} -std=c++20 -x c++ - -x none ${FLAGS:-} "${@:3}" -o "$scratch/program" \
            2>/dev/null && "$scratch/program"
}
# includes HEADER FLAG...: are there a header and, if a flag names it, its library?
includes() { builds "__has_include(<$1>)" 1 "${@:2}"; }
module() {
    python3 -c "import sys
for root in '.deps/usr', '/usr':
    sys.path.append(root + '/lib/python3/dist-packages')
import $1" 2>/dev/null
}

# found PACKAGE: is it here? Sets $conda to its name in conda-forge.
found() {
    case $1 in
        g++) conda=cxx-compiler && builds 1 1 ;;
        mpich) conda=mpich && [ -n "${MPIRUN:-}" ] ;;
        libmpich-dev)
            conda=mpich && builds "$any || defined MPICH_NAME" 1 -include mpi.h ${MPI_FLAGS:-} ;;
        libopenblas-openmp-dev)
            conda="'openblas=*=openmp*'" && builds 1 "$any || openblas_get_parallel() == 2" \
                -include cblas.h -lopenblas ;;
        libcli11-dev) conda=cli11 && includes CLI/CLI.hpp ;;
        nlohmann-json3-dev) conda=nlohmann_json && includes nlohmann/json.hpp ;;
        libfmt-dev) conda=fmt && includes fmt/format.h -lfmt ;;
        libgtest-dev) conda=gtest && includes gtest/gtest.h -lgtest ;;
        libboost-context-dev)
            conda=libboost-devel && includes boost/context/fiber.hpp -lboost_context ;;
        libopenmpi-dev) conda=openmpi && command -v mpicxx.openmpi ;;
        openmpi-bin) conda=openmpi && command -v mpirun.openmpi ;;
        python3) conda=python && command -v python3 ;;
        python3-markdown-it) conda=markdown-it-py && module markdown_it ;;
        python3-pygments) conda=pygments && module pygments ;;
        chromium) conda='' && command -v chromium ;;
        openssh-server) conda='' && command -v sshd ;;
        iproute2) conda='' && command -v tc ;;
        slurm-wlm) conda='' && command -v slurmctld && command -v slurmd && command -v srun ;;
        munge) conda='' && command -v munged ;;
        *) echo "$0: how to look for $1?" >&2 && exit 2 ;;
    esac >/dev/null
}

missing=() from_conda=()
for package in "$@"; do
    found "$package" || { missing+=("$package") && from_conda+=("$conda"); }
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ $any = 1 ]; then
    echo "not found: ${missing[*]}. Conda has it:
conda install -c conda-forge" $(printf '%s\n' "${from_conda[@]}" | uniq) >&2
    exit 1
fi

# Where nothing can be fetched, any MPI and any OpenBLAS will do, too.
make_do() {
    any=1
    rm -rf .deps/apt
    for package in "${missing[@]}"; do
        found "$package" || { echo "$package cannot be installed" >&2 && exit 1; }
    done
    echo "they cannot be installed, but others that are here will do"
    exit 0
}
if [ "$(id -u)" = 0 ]; then
    echo "installing: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq &&
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; } || make_do
    exit 0
fi

echo "no root: unpacking under .deps/: ${missing[*]}"
mkdir -p .deps/apt/state/lists/partial .deps/apt/cache/archives/partial
apt=(apt-get -qq -o Debug::NoLocking=1 -o Dir::State="$PWD/.deps/apt/state"
     -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$PWD/.deps/apt/cache")
{ "${apt[@]}" update &&
    "${apt[@]}" install -y --download-only --no-install-recommends "${missing[@]}" >/dev/null; } ||
    make_do
for archive in .deps/apt/cache/archives/*.deb; do dpkg -x "$archive" .deps; done
# Libraries that the machine has were not downloaded: links to them have to lead out of .deps.
find .deps/usr/lib -name '*.so' -xtype l | while read -r link; do
    ln -sf "/$(dirname "${link#.deps/}")/$(readlink "$link")" "$link"
done
rm -rf .deps/apt
