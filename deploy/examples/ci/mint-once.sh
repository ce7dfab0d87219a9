#!/bin/sh
# mint-once.sh CREDENTIAL FILE: mints a first password into a new FILE of mode 0600, of one line. Where there is a password
# already it changes nothing, makes no file, and ends with 0 all the same. KUBE_SERVER, KUBE_CA (base64), KUBE_TOKEN and
# KUBE_NAMESPACE say where and who; without KUBE_TOKEN kubectl's own configuration does.
set -eu
umask 077
if [ -n "${KUBE_TOKEN:-}" ]; then
  KUBECONFIG=$(mktemp)
  export KUBECONFIG
  trap 'rm -f "$KUBECONFIG"' EXIT
  cat > "$KUBECONFIG" <<END
apiVersion: v1
kind: Config
clusters: [{name: it, cluster: {server: "$KUBE_SERVER", certificate-authority-data: "$KUBE_CA"}}]
users: [{name: it, user: {token: "$KUBE_TOKEN"}}]
contexts: [{name: it, context: {cluster: it, user: it, namespace: "$KUBE_NAMESPACE"}}]
current-context: it
END
fi
status=0
kubectl credentials mint "$1" --if-origin NotIssued --to-file "$2" || status=$?
if [ "$status" -eq 5 ]; then
  echo "$1 has a password already, and keeps it." >&2
  status=0
fi
exit "$status"
