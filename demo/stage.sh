# shellcheck shell=bash
# What the demo's scripts have in common: places, the tools, how things are shown and held to what was promised.
# Sourced; does nothing else.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
state=$PWD/target/demo
tools=$PWD/target/tools/bin
namespace=dra-operator
local_cluster=$PWD/target/cluster

# A copy with one context: no kubeconfig of yours is changed. There while the demo is.
export KUBECONFIG=$state/kubeconfig
# `kubectl dra` is the product, as a plugin of kubectl.
export PATH=$state/bin:$tools:$PATH

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' red=$'\e[31m' blue=$'\e[34m' plain=$'\e[0m'
else
  bold='' dim='' green='' red='' blue='' plain=''
fi

title() { printf '\n%s\n\n' "$bold━━ $* ━━$plain"; }
say() { printf '%s\n' "$*"; }
command_line() { printf '%s\n' "$blue\$ $*$plain"; }

# show COMMAND…: as a person would type it, and what it says.
show() {
  command_line "$(printf '%s ' "$@" | sed 's/ $//')"
  "$@"
  echo
}

# show_file FILE: without its comments.
show_file() {
  command_line "cat $1"
  grep -v '^ *#' "$1"
  echo
}

# broken WHAT…: ends the demo.
broken() {
  printf '%s\n' "$red✘ $*$plain" >&2
  echo "The cluster is as it was at that moment; \`make demo-down\` clears it." >&2
  exit 1
}

# holds WHAT IS EXPECTED: ends the demo where a fact is not as promised.
holds() {
  [ "$2" = "$3" ] || broken "$1: expected '$3', is '$2'"
  say "$green✔ $1$plain"
}

# wait_until SECONDS WHAT COMMAND…: polls until the command succeeds.
wait_until() {
  local seconds=$1 what=$2 deadline=$((SECONDS + $1))
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || broken "$what: not within $seconds s"
    sleep 0.2
  done
}
