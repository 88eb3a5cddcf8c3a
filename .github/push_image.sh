#!/usr/bin/env bash
# Build an image and push it: push_image.sh cpu|gpu VERSION
#
# To $REGISTRY/$OWNER/openrlhf-ada, with the tags cpu and cpu-VERSION (or gpu). Logs in as REGISTRY_USER with
# REGISTRY_PASSWORD. FLASH_ATTN_WHEEL: for the GPU's image (dockerfile/Dockerfile).
set -euo pipefail
kind=${1:?usage: push_image.sh cpu|gpu VERSION}
version=${2:?usage: push_image.sh cpu|gpu VERSION}

case $kind in
  cpu) file=dockerfile/Dockerfile.cpu arguments=() ;;
  gpu) file=dockerfile/Dockerfile arguments=(--build-arg "FLASH_ATTN_WHEEL=${FLASH_ATTN_WHEEL:-}") ;;
  *)
    echo "kind is '$kind': expected cpu or gpu" >&2
    exit 2
    ;;
esac
# Names of images are in small letters.
image=$REGISTRY/${OWNER,,}/openrlhf-ada

docker login --username "$REGISTRY_USER" --password-stdin "$REGISTRY" <<<"$REGISTRY_PASSWORD"
docker build --file "$file" "${arguments[@]}" --tag "$image:$kind" --tag "$image:$kind-$version" .
docker push "$image:$kind-$version"
docker push "$image:$kind"
