#!/usr/bin/env bash
# Installs those of the Debian packages named as arguments that are missing. As root it uses apt;
# without root it downloads them and their dependencies and unpacks everything under .deps/, where
# the Makefile looks.
set -euo pipefail
cd "$(dirname "$0")/.."

installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'; }

missing=()
for package in "$@"; do
    installed "$package" || [ -e ".deps/have/$package" ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "No apt-get here. With conda: conda install -c conda-forge cxx-compiler mpich \\
    'openblas=*=openmp*' cli11 nlohmann_json fmt gtest libboost-devel make" >&2
    exit 1
fi

if [ "$(id -u)" = 0 ]; then
    echo "installing: ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    exit 0
fi

echo "no root: unpacking under .deps/: ${missing[*]}"
mkdir -p .deps/apt/state/lists/partial .deps/apt/cache/archives/partial .deps/have
apt=(apt-get -qq -o Debug::NoLocking=1 -o Dir::State="$PWD/.deps/apt/state"
     -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$PWD/.deps/apt/cache")
"${apt[@]}" update
"${apt[@]}" install -y --download-only --no-install-recommends "${missing[@]}" >/dev/null
for archive in .deps/apt/cache/archives/*.deb; do dpkg -x "$archive" .deps; done
for package in "${missing[@]}"; do touch ".deps/have/$package"; done
rm -rf .deps/apt
