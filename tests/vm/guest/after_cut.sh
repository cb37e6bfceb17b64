#!/usr/bin/env bash
# What a power cut may not have done; in the machine, after the next boot. Prints what is wrong.
wrong=0
complain() { wrong=1; echo "$1:"; sed 's/^/    /'; }
errors=$(journalctl -k -b --no-pager -o cat | grep -E 'EXT4-fs (error|warning)|I/O error')
[ -z "$errors" ] || complain "the file system" <<<"$errors"
restarts=$(systemctl show --value --property NRestarts edgeopt-agent)
[ "$restarts" = 0 ] || complain "the daemon was started $((restarts + 1)) times" < <(journalctl -u edgeopt-agent -b --no-pager -o cat -n 20)
errors=$(journalctl -u edgeopt-agent -b --no-pager -o cat -p err)
[ -z "$errors" ] || complain "the daemon's errors" <<<"$errors"
systemctl is-active --quiet feeder || complain "nothing feeds it" < <(journalctl -u feeder -b --no-pager -o cat)
refused=$(ls -A /var/lib/edgeopt/in/failed 2>/dev/null)
[ -z "$refused" ] || complain "files that were given up" <<<"$refused"
# A bundle in the store is named after its content.
while read -r file; do
    [ "$(sha256sum <"$file" | cut -d' ' -f1)" = "$(basename "$file" .edge)" ] || complain "not what its name says" <<<"$file"
done < <(find /var/lib/edgeopt/store -name '*.edge')
# Within reason: leftovers of each cut would fill the disk.
count=$(find /var/lib/edgeopt/store -type f | wc -l)
[ "$count" -le 12 ] || complain "$count files in the store" < <(find /var/lib/edgeopt/store -type f)
exit $wrong
