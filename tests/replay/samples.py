"""A line in each form that replay reads, made by us with addresses for documentation, and what is right beside it.

A sample is: form, as the report names it; lines; the key of its last line; its time; and where the form has them method,
path, status and size. CLIENT is nobody's neighbour when cut off: no beginning of it is an address.
"""

CLIENT = "192.0.2.9"
OTHER = "203.0.113.77"  # a proxy, a server, what a client claims
V6 = "2001:db8::9"
CLF_TIME = "10/Oct/2024:13:55:36 +0000"
ISO = "2024-10-10T13:55:36Z"
EPOCH = 1728568536
REST = '"GET /a?b=c HTTP/1.1" 401 2326'
AGENT = '"http://example.com/start.html" "Agent/1.0 (X11; Linux)"'
OWNER = "79a59df900b949e55d96a1e698fbacedfd6e09d98eacf8f8d5218e7cd47ef2be"


class Sample:
    def __init__(self, form, lines, key=CLIENT, seconds=EPOCH, web=True, size=2326, whole=False, method="GET"):
        self.form, self.key, self.seconds, self.web, self.size, self.whole, self.method = form, key, seconds, web, size, whole, method
        self.lines = lines if isinstance(lines, list) else [lines]

    def __repr__(self):
        return self.lines[-1]


def clf(host, user="- -", time=CLF_TIME, rest=REST):
    return f"{host} {user} [{time}] {rest}"


W3C = ["#Software: Microsoft Internet Information Services 10.0", "#Version: 1.0", "#Date: 2024-10-10 13:00:00",
       "#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) sc-status sc-bytes time-taken"]
CLOUDFRONT = ["#Version: 1.0", "#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type"]
CADDY = ('{"level":"info","ts":1728568536.5,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"203.0.113.77","remote_port":"41342",'
         '"client_ip":"192.0.2.9","proto":"HTTP/2.0","method":"GET","host":"example.com","uri":"/a?b=c","headers":{"User-Agent":["Agent \\"1.0\\" \\u00e9"],"X-Forwarded-For":["198.51.100.4"]}},'
         '"bytes_read":0,"user_id":"","duration":0.000929675,"size":2326,"status":401,"resp_headers":{"Server":["Caddy"]}}')
TRAEFIK = ('{"ClientAddr":"192.0.2.9:56700","ClientHost":"192.0.2.9","ClientPort":"56700","ClientUsername":"-","DownstreamContentSize":2326,"DownstreamStatus":401,'
           '"RequestHost":"example.com","RequestMethod":"GET","RequestPath":"/a?b=c","StartUTC":"2024-10-10T13:55:36.5Z","level":"info","msg":"","time":"2024-10-10T15:55:37+02:00"}')
NGINX = ('{"time_iso8601":"2024-10-10T15:55:36+02:00","remote_addr":"192.0.2.9","remote_user":"x\\" y","request":"GET /a?b=c HTTP/1.1","status":"401","body_bytes_sent":"2326","http_user_agent":"Agent/1.0"}')
NGINX_LOCAL = '{"time_local":"10/Oct/2024:13:55:36 +0000","remote_addr":"192.0.2.9","request_method":"GET","request_uri":"/a?b=c","status":401,"bytes_sent":2326}'
DOCKER = '{"log":"192.0.2.9 - - [10/Oct/2024:13:55:36 +0000] \\"GET /a?b=c HTTP/1.1\\" 401 2326 \\"-\\" \\"Agent\\"\\n","stream":"stdout","time":"2024-10-10T13:55:37.123456789Z"}'
DOCKER_CADDY = '{"log":' + __import__("json").dumps(CADDY + "\n") + ',"stream":"stderr","time":"2024-10-10T13:55:37.1Z"}'
ALB = ('https 2024-10-10T13:55:36.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.0.2.9:2817 203.0.113.77:80 0.086 0.048 0.037 401 200 0 2326 '
       '"GET https://www.example.com:443/a?b=c HTTP/1.1" "curl/7.46.0" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067 '
       '"Root=1-58337281-1d84f3d73c47ec4e58577259" "www.example.com" "-" 1 2024-10-10T13:55:35.048000Z "authenticate,forward" "-" "-" "203.0.113.77:80" "200" "-" "-"')
ELB = '2024-10-10T13:55:36.945958Z my-loadbalancer 192.0.2.9:2817 203.0.113.77:80 0.000073 0.001048 0.000057 401 200 0 2326 "GET http://www.example.com:80/a?b=c HTTP/1.1" "curl/7.38.0" - -'
S3 = (f'{OWNER} examplebucket [06/Feb/2019:00:00:38 +0000] 192.0.2.9 {OWNER} 3E57427F3EXAMPLE REST.GET.OBJECT a "GET /a?b=c HTTP/1.1" 401 - 2326 2326 41 39 "-" "S3Console/0.4" - '
      's9lzHYrFp76ZVxRcpX9+5cjAnEH2ROuNkd2BHfIa6UkFVdtjf5mKR3/eTPFvsiP/XV/VLi31234= SigV4 ECDHE-RSA-AES128-GCM-SHA256 AuthHeader examplebucket.s3.us-west-1.amazonaws.com TLSV1.2 - -')
HAPROXY = '192.0.2.9:33317 [10/Oct/2024:13:55:36.655] http-in static/srv1 10/0/30/69/109 401 2326 - - ---- 1/1/1/1/0 0/0 {example.com} {} "GET /a?b=c HTTP/1.1"'
HAPROXY_TCP = "192.0.2.9:33313 [10/Oct/2024:13:55:36.443] fnt bck/srv1 0/0/5007 2326 -- 0/0/0/0/3 0/0"
OLD = 951782400 + 13 * 3600 + 55 * 60 + 36  # 29 February 2000: a log without years

WEB = [
    Sample("common", clf(CLIENT)),
    Sample("common", clf(CLIENT, time="10/Oct/2024:15:55:36 +0200")),
    Sample("common", clf(CLIENT, time="2024-10-10T15:55:36+02:00")),
    Sample("combined", clf(CLIENT) + " " + AGENT),
    Sample("combined", clf(CLIENT) + ' "-" "Agent \\" [01/Jan/1990:00:00:00 +0000] \\"x\\""'),
    Sample("combined", clf(CLIENT) + f' {AGENT} "{OTHER}"'),
    Sample("combined", clf(V6) + " " + AGENT, key=V6),
    Sample("combined", clf("client.example.net") + " " + AGENT, key="client.example.net"),
    Sample("combined", clf(CLIENT).replace('] "', '] (0 s) "') + " " + AGENT),
    # N05: ports and brackets
    Sample("combined", clf(CLIENT + ":51234") + " " + AGENT),
    Sample("combined", clf(f"[{V6}]") + " " + AGENT, key=V6),
    Sample("combined", clf(f"[{V6}]:51234") + " " + AGENT, key=V6),
    Sample("combined", clf("fe80::9%eth0") + " " + AGENT, key="fe80::9"),
    Sample("combined", clf("::ffff:192.0.2.9") + " " + AGENT),
    # N01: the proxies behind the client
    Sample("combined", clf(f"{CLIENT}, {OTHER}") + " " + AGENT),
    Sample("combined", clf(f"{CLIENT}, {OTHER}, 198.51.100.4") + " " + AGENT),
    Sample("combined", clf(f"{CLIENT},{OTHER}") + " " + AGENT),
    Sample("combined with virtual host", clf(f"www.example.com {CLIENT}, {OTHER}") + " " + AGENT),
    # N06: a virtual host before the client
    Sample("combined with virtual host", clf(f"www.example.com:443 {CLIENT}") + " " + AGENT),
    Sample("combined with virtual host", clf("www.example.com:443 h7.example.net", "- ann") + " " + AGENT, key="h7.example.net"),
    Sample("combined with virtual host", clf("_ " + CLIENT) + " " + AGENT),
    # a user with blanks and brackets
    Sample("combined", clf(CLIENT, "- john [x] doe") + " " + AGENT),
    Sample("combined", clf(CLIENT, "- john doe") + " " + AGENT),
    Sample("combined", clf(CLIENT, "- a, b") + " " + AGENT),
    Sample("combined with virtual host", clf(f"www.example.com {CLIENT}", "- john m doe") + " " + AGENT),
    # N07: a time in the user's name
    Sample("combined", clf(CLIENT, "- x [01/Jan/1990:00:00:00 +0000] y") + " " + AGENT),
    Sample("combined", clf(CLIENT, "- x [01/Jan/1990:00:00:00 +0000] (0 s)") + " " + AGENT),
    Sample("combined", clf(CLIENT, f"- - {OTHER} - - [01/Jan/1990:00:00:00 +0000] y") + " " + AGENT),
    Sample("combined", clf(CLIENT, "- [01/Jan/1990:00:00:00 +0000] 203.0.113.77 a b c d") + " " + AGENT),
    # N02, N03: what others write before it
    Sample("combined in syslog", "Dec  7 11:05:07 web1 nginx: " + clf(CLIENT) + " " + AGENT),
    Sample("combined in syslog", "2024-12-07T11:05:07.792703+00:00 web1 nginx[12]: " + clf(CLIENT) + " " + AGENT),
    Sample("combined in syslog", "<190>Dec  7 11:05:07 web1 nginx: " + clf(CLIENT) + " " + AGENT),
    Sample("combined in syslog", f'<190>1 {ISO} web1 nginx 12 - [x@1 a="]"] ' + clf(CLIENT) + " " + AGENT),
    Sample("combined with virtual host in syslog", "Dec  7 11:05:07 web1 nginx: www.example.com " + clf(CLIENT) + " " + AGENT),
    Sample("combined in docker compose", "web-1  | " + clf(CLIENT) + " " + AGENT),
    Sample("combined in docker compose", "\x1b[36mweb-1  |\x1b[0m " + clf(CLIENT) + " " + AGENT),
    Sample("combined in docker compose with a container's time or pod", "web-1  | 2024-10-10T13:55:37.1Z " + clf(CLIENT) + " " + AGENT),
    Sample("combined with a container's time or pod", "[pod/web-5d/nginx] " + clf(CLIENT) + " " + AGENT),
    Sample("combined with a container's time or pod", "2024-11-27T22:00:00.1Z " + clf(CLIENT) + " " + AGENT),
    Sample("combined with a container's time or pod", "2024-11-27T22:00:00.1Z stdout F " + clf(CLIENT) + " " + AGENT),
    Sample("combined in Docker's JSON", DOCKER),
    Sample("Caddy JSON in Docker's JSON", DOCKER_CADDY),
    Sample("Caddy JSON", CADDY),
    Sample("Caddy JSON in docker compose", "caddy-1 | " + CADDY),
    Sample("Caddy JSON in syslog", "Dec  7 11:05:07 web1 caddy[7]: " + CADDY),
    Sample("JSON in syslog", '2024-10-10T13:55:36Z web1 app[7]: {"client_ip":"192.0.2.9","method":"GET","path":"/a","status":401,"size":2326}'),
    Sample("JSON with a container's time or pod", '2024-10-10T13:55:36.5Z {"client_ip":"192.0.2.9","method":"GET","path":"/a","status":401,"size":2326}'),
    Sample("Traefik JSON", TRAEFIK),
    Sample("nginx JSON", NGINX),
    Sample("nginx JSON", NGINX_LOCAL),
    Sample("JSON", '{"timestamp":1728568536123,"client_ip":"[2001:db8::9]:443","method":"GET","path":"/a?b=c","status":401,"size":2326}', key=V6),
    Sample("Amazon ALB", ALB),
    Sample("Amazon ELB", ELB),
    Sample("Amazon S3", S3, seconds=1549411238),
    Sample("CloudFront", CLOUDFRONT + ["2024-10-10\t13:55:36\tLAX1\t2326\t192.0.2.9\tGET\td111111abcdef8.cloudfront.net\t/a\t401\t-\tcurl/7.64\tb=c\t-\tHit"]),
    Sample("IIS", W3C + ["2024-10-10 13:55:36 203.0.113.77 GET /a b=c 443 - 192.0.2.9 Agent/1.0+(\"X11 401 2326 187"]),
    Sample("W3C", ["#Fields: time c-ip cs-method cs-uri sc-status sc-bytes", "#Date: 2024-10-10 00:00:00", "13:55:36 192.0.2.9 GET /a?b=c 401 2326"]),
    Sample("W3C", ['#Fields: date-local time-local s-ip cs-method cs-uri-stem c-ip "cs(User-Agent)" sc-status sc-bytes', '2024-10-10 13:55:36.363 203.0.113.77 GET /a "192.0.2.9" "Agent/1.0 (X11; Linux)" 401 2326']),
    Sample("HAProxy", HAPROXY),
    Sample("HAProxy", HAPROXY.replace("192.0.2.9:", "2001:db8::9:"), key=V6),
    Sample("HAProxy in syslog", "Feb  6 12:14:14 lb1 haproxy[14389]: " + HAPROXY),
    Sample("combined in syslog", 'Feb  6 12:14:14 lb1 haproxy[14389]: ' + clf("192.0.2.9:33317") + ' "" "" 33317 109 "http-in" "static" "srv1" 10 0 30 69 109 ---- 1 1 1 1 0 0 0 0 ""'),
]

SSH_RFC = "2024-10-10T13:55:36.792703+00:00 host1 sshd[123]: "
SSH_OLD = "Feb 29 13:55:36 host1 sshd[123]: "

# What sshd writes, and the address that it is about; None: it names none, or none that is certain.
MESSAGES = [
    ("Failed password for root from 192.0.2.9 port 38926 ssh2", CLIENT),
    ("Failed password for invalid user admin from 192.0.2.9 port 38926 ssh2", CLIENT),
    ("Failed password for invalid user from 192.0.2.9 port 38926 ssh2", CLIENT),
    ("Failed password for invalid user from 203.0.113.77 from 192.0.2.9 port 22 ssh2", CLIENT),  # N08
    ("Failed password for invalid user from 203.0.113.77 port 22 ssh2 from 192.0.2.9 port 22 ssh2", CLIENT),
    ("Failed keyboard-interactive/pam for invalid user x from 2001:db8::9 port 22 ssh2", V6),
    ("Invalid user u from 192.0.2.9 port 5678", CLIENT),
    ("Invalid user u from 192.0.2.9", CLIENT),
    ("Invalid user from 203.0.113.77 port 22 from 192.0.2.9", CLIENT),
    ("Accepted publickey for ann from 192.0.2.9 port 5678 ssh2: RSA SHA256:abc", CLIENT),
    ("User u from 192.0.2.9 not allowed because not listed in AllowUsers", CLIENT),
    ("User x from 203.0.113.77 not allowed because y from 192.0.2.9 not allowed because listed in DenyUsers", CLIENT),
    ("error: maximum authentication attempts exceeded for invalid user a from 192.0.2.9 port 22 ssh2 [preauth]", CLIENT),
    ("error: PAM: Authentication failure for root from 192.0.2.9", CLIENT),
    ("pam_unix(sshd:auth): authentication failure; logname= uid=0 euid=0 tty=ssh ruser= rhost=192.0.2.9  user=root", CLIENT),
    ("pam_unix(sshd:auth): authentication failure; logname= uid=0 euid=0 tty=ssh ruser= rhost=192.0.2.9  user=rhost=203.0.113.77", CLIENT),
    ("pam_unix(sshd:auth): authentication failure; logname= uid=0 euid=0 tty=ssh ruser=a rhost=203.0.113.77 rhost=192.0.2.9  user=root", None),
    ("PAM 2 more authentication failures; logname= uid=0 euid=0 tty=ssh ruser= rhost=192.0.2.9  user=root", CLIENT),
    ("Received disconnect from 192.0.2.9 port 5678:11: Bye Bye [preauth]", CLIENT),
    ("Received disconnect from 192.0.2.9: 11: Bye Bye [preauth]", CLIENT),
    ("Received disconnect from 192.0.2.9 port 5678:11: from 203.0.113.77 port 1 [preauth]", CLIENT),
    ("Disconnected from 192.0.2.9 port 5678 [preauth]", CLIENT),
    ("Disconnected from invalid user admin 192.0.2.9 port 5678 [preauth]", CLIENT),
    ("Disconnected from authenticating user root 2001:db8::9 port 5678 [preauth]", V6),
    ("Connection closed by 192.0.2.9 port 5678 [preauth]", CLIENT),
    ("Connection closed by authenticating user root 192.0.2.9 port 5678 [preauth]", CLIENT),
    ("Connection closed by invalid user a 203.0.113.77 port 1 192.0.2.9 port 5678 [preauth]", CLIENT),
    ("Failed password for user from 192.0.2.9 port 20000 ssh1: ruser from 203.0.113.77", None),  # or is all that the user's name?
    ("Failed password for invalid user test from 192.0.2.9 port 58946 ssh2: from 203.0.113.77 port 55555 ssh2", None),
    ("error: PAM: Authentication failure for ann from client.example.net", "client.example.net"),
    ("User root from client.example.net not allowed because not listed in AllowUsers", "client.example.net"),
    ("Failed password for root from client.example.net port 22 ssh2", "client.example.net"),
    ("Connection reset by 192.0.2.9 port 5678", CLIENT),
    ("Disconnecting invalid user a 192.0.2.9 port 22: Too many authentication failures [preauth]", CLIENT),
    ("Disconnecting invalid user a 192.0.2.9 port 22: Change of username or service not allowed: (a,ssh-connection) -> (x 203.0.113.77 port 1,ssh-connection) [preauth]", None),
    ("Unable to negotiate with 192.0.2.9 port 22: no matching key exchange method found. Their offer: from 203.0.113.77 [preauth]", CLIENT),
    ("Bad protocol version identification 'GET / from 203.0.113.77 port 1' from 192.0.2.9 port 5678", CLIENT),
    ("banner exchange: Connection from 192.0.2.9 port 5678: invalid format", CLIENT),
    ("Did not receive identification string from 192.0.2.9 port 5678", CLIENT),
    ("Did not receive identification string from 192.0.2.9", CLIENT),
    ("Connection from 192.0.2.9 port 5678 on 203.0.113.77 port 22", CLIENT),
    ("fatal: Timeout before authentication for 192.0.2.9 port 5678", CLIENT),
    ("Timeout before authentication for connection from 192.0.2.9 to 203.0.113.77, pid = 12", CLIENT),
    ("ROOT LOGIN REFUSED FROM 192.0.2.9 port 22", CLIENT),
    ("reverse mapping checking getaddrinfo for host9.example.net [192.0.2.9] failed - POSSIBLE BREAK-IN ATTEMPT!", CLIENT),
    ("Address 192.0.2.9 maps to host9.example.net, but this does not map back to the address.", CLIENT),
    ("drop connection #10 from [192.0.2.9]:5678 on [203.0.113.77]:22 past MaxStartups", CLIENT),
    ("refused connect from 192.0.2.9 (192.0.2.9)", CLIENT),
    ("Server listening on 0.0.0.0 port 22.", None),
    ("Forwarding with 203.0.113.77 from 192.0.2.9 refused", CLIENT),
    ("error: kex_exchange_identification: Connection closed by remote host", None),
    ("pam_unix(sshd:session): session opened for user root(uid=0) by (uid=0)", None),
]

OTHERS = [
    Sample("ssh", SSH_RFC + MESSAGES[0][0], web=False),
    Sample("ssh", "<38>" + SSH_RFC + MESSAGES[0][0], web=False),
    Sample("ssh", "2024-10-10T15:55:36.1+0200 host1 sshd-session[123]: " + MESSAGES[0][0], web=False),
    Sample("ssh", SSH_OLD + MESSAGES[0][0], seconds=OLD, web=False),
    Sample("ssh", SSH_OLD.replace(":36", ":36.25") + MESSAGES[0][0], seconds=OLD, web=False),
    Sample("ssh", SSH_OLD.replace("sshd[123]", "sshd(pam_unix)[123]") + "authentication failure; rhost=192.0.2.9 from 192.0.2.9 port 5", seconds=OLD, web=False),
    Sample("syslog", "2024-10-10T13:55:36Z mail1 postfix/smtpd[7]: lost connection after AUTH from 192.0.2.9", web=False),
    Sample("ssh, short", "Feb 29 13:55:36 192.0.2.9 failed-password", seconds=OLD, web=False),
    Sample("ssh, short", "Feb 29 13:55:36 alice failed-password", key="alice", seconds=OLD, web=False, whole=True),
    Sample("TIME KEY", "1728568536 192.0.2.9 3", web=False, whole=True),
    Sample("TIME KEY", "1728568536.25 alice", key="alice", web=False, whole=True),
    Sample("TIME KEY", "1728568536123 alice", key="alice", web=False, whole=True),
    Sample("TIME KEY", "1728568536123456 alice", key="alice", web=False, whole=True),
    Sample("TIME KEY", "1728568536123456789 alice 2", key="alice", web=False, whole=True),
    Sample("TIME KEY", "2024-10-10T13:55:36Z alice", key="alice", web=False, whole=True),
    Sample("TIME KEY", "2024-10-10 15:55:36.5+02:00 192.0.2.9:443 2", web=False, whole=True),
    Sample("TIME KEY", "2024-10-10 13:55:36 alice", key="alice", web=False, whole=True),
    Sample("TIME KEY in docker compose", "web-1 | 1728568536 alice", key="alice", web=False, whole=True),
]

# Lines that are of no form, or of one without a client that is certain: never a key.
NO_KEY = [
    clf("-") + " " + AGENT,
    clf("unix:") + " " + AGENT,
    clf("shop:80 unix:") + " " + AGENT,
    clf("unknown, " + OTHER).replace("unknown", "-") + " " + AGENT,
    clf("192.0.2.999") + " " + AGENT,
    clf("192.0.02.1") + " " + AGENT,
    clf("192.0.2.1:99999") + " " + AGENT,
    clf("[192.0.2.1]") + " " + AGENT,
    clf("a:80") + " " + AGENT,
    clf("") + " " + AGENT,
    clf(f"{OTHER} {CLIENT}") + " " + AGENT,  # which? see --host
    clf(f"www.example.com {CLIENT}", "-") + " " + AGENT,
    clf(f"name {CLIENT} other more", "- -") + " " + AGENT,
    clf("www.example.com", "- ann lee") + " " + AGENT,
    clf(CLIENT, "ident john doe") + " " + AGENT,
    clf("web-1 | -") + " " + AGENT,
    clf(CLIENT)[:41],  # cut off before the request
    f"[{CLF_TIME}] {CLIENT} {REST}",
    f"{OWNER} bucket [{CLF_TIME}] - {OWNER} 3E57427F3EXAMPLE",
    f"{CLIENT} - [{CLF_TIME}] {OTHER} x y",
    "Dec  7 11:05:07 web1 kernel: eth0: link is down",
    "Dec  7 11:05:07 web1 kernel oops at this",
    "Dec  7 11:05:07 192.0.2.1 kernel: a remote host's message",
    "Dec  7 11:05:07 sshd[123]: Failed password for root",
    "2024-12-07T11:05:07Z web1 cron[1]: (root) CMD (x)",
    "2024-12-07T11:05:07Z mail1 dovecot[1]: from 192.0.2.1 and from 192.0.2.2",
    "1286536309.586 921 192.0.2.1 TCP_MISS/200 507 GET http://example.com/",
    "2019-12-04\t21:02:31\tLAX1\t392\t192.0.2.100\tGET\td111111abcdef8.cloudfront.net\t/index.html\t200",
    "2024-01-12 11:15:58 203.0.113.77 GET /index.html - 80 - 192.0.2.9",
    "1 a b",
    "1 -",
    "1728568536.25 null",
    '1728568536 {"client_ip":"192.0.2.9"}',
    '2024-10-10T13:55:36Z {"client_ip":"192.0.2',
    "1 a 3 c",
    '{"ts":1728568536}',
    '{"request":{"client_ip":"192.0.2.9"}}',
    '{"ts":1728568536,"client_ip":"-"}',
    '{"ts":1728568536,"client_ip":"192.0.2.9","client_ip":"203.0.113.77"}',
    '{"ts":1728568536,"ts":1,"client_ip":"192.0.2.9"}',
    '{"ts":1728568536,"client_ip":"192.0.2.9"} x',
    '{"ts":1728568536,"client_ip":"192.0.2.9",}',
    '{"ts":1728568536,"client_ip":"192.0.2.9","x":"\\x22"}',
    '{"ts":1728568536,"client_ip":"192.0.2.9","x":"a\tb"}',
    '[{"ts":1728568536,"client_ip":"192.0.2.9"}]',
    "{" * 50,
    "[" * 50,
    "nginx: worker process 4021 exited on signal 11",
    "Mon Mar  3 14:00:07 2026 192.0.2.9",
]
