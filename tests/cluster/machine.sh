# shellcheck shell=bash
# What the cluster changes on the machine, and how it undoes each change. To be sourced after groups.sh.

before=$var/before # the state of the machine before the first start

# Directories that components create outside the cluster's own: those that did not exist before are removed.
makes=(/var/run/nri $cdi_dir /var/lib/kubelet /var/lib/cni /run/containerd /run/mount /var/log/containers)
sysctls=(net.ipv4.ip_forward net.ipv4.conf.all.route_localnet net.netfilter.nf_conntrack_max
  net.netfilter.nf_conntrack_tcp_timeout_established net.netfilter.nf_conntrack_tcp_timeout_close_wait
  vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys
  kernel.keys.root_maxbytes)

# chains COMMAND: the chains whose names belong to Kubernetes and CNI, as "TABLE CHAIN".
chains() {
  "$1-save" 2>/dev/null | awk '/^\*/ { table = substr($1, 2) } /^:(KUBE|CNI)-/ { print table, substr($1, 2) }'
}

# tables COMMAND: the existing tables. The kernel creates a table, with its base chains, for the first rule in it.
tables() { "$1-save" 2>/dev/null | sed -n 's/^\*//p'; }

# remember: records the state of the machine, once, and completely or not at all.
remember() {
  [ ! -d $before ] || return 0
  rm -rf $before.new
  mkdir -p $before.new
  local place command
  for place in "${makes[@]}"; do
    [ -e "$place" ] || echo "$place"
  done >$before.new/absent
  sysctl "${sysctls[@]}" >$before.new/sysctls 2>/dev/null || true
  for command in iptables ip6tables; do
    chains $command >$before.new/$command
    tables $command >$before.new/$command.tables
  done
  mv $before.new $before
}

make_bridge() {
  ip link show $bridge >/dev/null 2>&1 || ip link add $bridge type bridge
  [[ $(ip address show dev $bridge) == *"inet $address/"* ]] || ip address add $address/24 dev $bridge
  ip link set $bridge up
  sysctl -q -w net.ipv4.ip_forward=1
}

# drop_chains COMMAND: drops the chains that did not exist before, and the rules elsewhere that lead to them.
drop_chains() {
  local command=$1 table ours
  ours=$(chains "$command" | grep -vxFf "$before/$command" || true)
  for table in $(cut -d' ' -f1 <<<"$ours" | sort -u); do
    "$command-save" -t "$table" 2>/dev/null | awk -v table="$table" -v ours="$ours" '
      BEGIN {
        print "*" table
        lines = split(ours, line, "\n")
        for (i = 1; i <= lines; i++) { split(line[i], word, " "); if (word[1] == table) own[word[2]] = 1 }
      }
      $1 == "-A" && !($2 in own) {
        for (i = 3; i < NF; i++) if (($i == "-j" || $i == "-g") && ($(i + 1) in own)) { sub(/^-A/, "-D"); print; break }
      }
      END { for (c in own) print "-F " c; for (c in own) print "-X " c; print "COMMIT" }
    ' | "$command-restore" --noflush 2>/dev/null || say "could not remove the chains of $command table $table"
  done
}

# drop_tables COMMAND FAMILY: drops the tables that did not exist before and that nothing else uses.
drop_tables() {
  local command=$1 table
  [ -f "$before/$command.tables" ] || return 0
  for table in $(tables "$command" | grep -vxFf "$before/$command.tables" || true); do
    "$command-save" -t "$table" 2>/dev/null | grep -qE '^(-A|:[^ ]+ -)' || nft delete table "$2" "$table" 2>/dev/null || true
  done
}

unmount_all() {
  local mount
  awk -v a="$var/" -v b="$run/" 'index($5, a) == 1 || index($5, b) == 1 { print $5 }' /proc/self/mountinfo | tac |
    while read -r mount; do
      umount "$mount" 2>/dev/null || umount -l "$mount" 2>/dev/null || true
    done
}

# restore: undoes everything. Whatever uses a thing goes before the thing itself.
restore() {
  local place
  unmount_all
  ! ip link show $bridge >/dev/null 2>&1 || ip link delete $bridge
  remove_groups
  if [ -d $before ]; then
    drop_chains iptables
    drop_chains ip6tables
    drop_tables iptables ip
    drop_tables ip6tables ip6
    sed 's/ = /=/' $before/sysctls | while IFS= read -r setting; do sysctl -q -w "$setting" 2>/dev/null || true; done
    # In a directory that existed before, only links into the cluster's own directories are ours.
    [ ! -d /var/log/containers ] || find /var/log/containers -lname "$var/*" -delete
    rm -f $nri_socket
    while IFS= read -r place; do
      rm -rf --one-file-system "$place" || say "left $place: it is in use"
    done <$before/absent
  fi
  rm -rf --one-file-system $run
  rm -rf --one-file-system $var
}

# residue: says what of the cluster is still on the machine; nothing when all is gone.
residue() {
  local place pid
  for pid in $(every_pid); do echo "process $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null)"; done
  awk -v a="$var" -v b="$run" 'index($5, a) == 1 || index($5, b) == 1 { print "mount " $5 }' /proc/self/mountinfo
  ! ip link show $bridge >/dev/null 2>&1 || echo "bridge $bridge"
  for place in $(every_group) $var $run; do
    [ ! -e "$place" ] || echo "$place"
  done
}
