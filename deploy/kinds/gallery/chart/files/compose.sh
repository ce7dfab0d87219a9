#!/bin/sh
# Composes nginx's file of passwords ($2) from the account Secrets that are mounted below $1, a folder each. nginx reads
# the file for each request, so it is replaced whole, and nothing needs to be told.
set -eu
umask 077
for account in "$1"/*/; do
  # A Secret that is not there yet, or no more, is an empty folder: nobody gets in by it.
  [ -s "$account/username" ] && [ -s "$account/password" ] || continue
  printf '%s:%s\n' "$(cat "$account/username")" "$(cat "$account/password")"
done >"$2.next"
mv "$2.next" "$2"
