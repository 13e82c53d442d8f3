# shellcheck shell=bash
# Shared by the demo's scripts: paths, tools, and functions that show commands and check results. To be sourced; has no other
# effect.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
state=$PWD/target/demo
tools=$PWD/target/tools/bin
namespace=dra-operator
local_cluster=$PWD/target/cluster

# A copy with one context, so that your own kubeconfig stays unchanged. Exists as long as the demo.
export KUBECONFIG=$state/kubeconfig
# `kubectl dra` is the product as a kubectl plugin.
export PATH=$state/bin:$tools:$PATH

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' red=$'\e[31m' blue=$'\e[34m' plain=$'\e[0m'
else
  bold='' dim='' green='' red='' blue='' plain=''
fi

title() { printf '\n%s\n\n' "$bold━━ $* ━━$plain"; }
say() { printf '%s\n' "$*"; }
command_line() { printf '%s\n' "$blue\$ $*$plain"; }

# show COMMAND…: prints the command as typed, then its output.
show() {
  command_line "$(printf '%s ' "$@" | sed 's/ $//')"
  "$@"
  echo
}

# show_file FILE: prints it without comments.
show_file() {
  command_line "cat $1"
  grep -v '^ *#' "$1"
  echo
}

# broken WHAT…: ends the demo with an error.
broken() {
  printf '%s\n' "$red✘ $*$plain" >&2
  echo "The cluster is left in this state; \`make demo-down\` removes it." >&2
  exit 1
}

# holds WHAT IS EXPECTED: ends the demo unless the two are equal.
holds() {
  [ "$2" = "$3" ] || broken "$1: expected '$3', got '$2'"
  say "$green✔ $1$plain"
}

# wait_until SECONDS WHAT COMMAND…: polls until the command succeeds.
wait_until() {
  local seconds=$1 what=$2 deadline=$((SECONDS + $1))
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || broken "$what: still waiting after $seconds s"
    sleep 0.2
  done
}
