/* ssh.c - which address a message of sshd is about

   What a client can choose (the name it logs in with, its text at parting) is part of the message
   and may look like an address. So the address is looked for where only sshd writes: at a fixed
   place at the front, or, after a name, at the last place. A message of any other program counts
   only if it names one address. */
#include "replay.h"

#include <string.h>

/* "ADDRESS", "ADDRESS:", "[ADDRESS]:PORT", "(ADDRESS)" with signs after it. */
static text address_in(text t)
{
    static const text none = {NULL, 0};
    while (t.len && strchr(":;,.)", t.at[t.len - 1]) && t.at[t.len - 1]) {
        if (t.at[t.len - 1] == ':' && t.len > 1 && t.at[t.len - 2] == ':')
            break; /* 2001:db8:: */
        t.len--;
    }
    if (t.len && t.at[0] == '(')
        t = part_of(t, 1, t.len - 1);
    if (t.len > 1 && t.at[0] == '[') {
        const char *end = (const char *)memchr(t.at, ']', t.len);
        text inside = part_of(t, 1, end ? (size_t)(end - t.at) - 1 : 0);
        return is_address(inside) ? inside : none;
    }
    return bare_address(t);
}

/* "192.0.2.1:11:": a port of digits and the disconnect's reason are glued to it. */
static text front_address(text t)
{
    text address = address_in(t);
    while (!address.at && t.len && memchr(t.at, ':', t.len)) {
        t = last_colon_off(t);
        address = address_in(t);
    }
    return address;
}

/* Messages that begin with it have the address next. */
static const char *const fronts[] = {
    "Received disconnect from ",
    "Unable to negotiate with ",
    "fatal: Unable to negotiate with ",
    "Connection from ",
    "banner exchange: Connection from ",
    "error: kex_exchange_identification: Connection from ",
    "ssh_dispatch_run_fatal: Connection from ",
    "Did not receive identification string from ",
    "Timeout before authentication for connection from ",
    "Timeout before authentication for ",
    "fatal: Timeout before authentication for ",
    "Disconnected from ",
    "Connection closed by ",
    "Connection reset by ",
    "ROOT LOGIN REFUSED FROM ",
    "Address ",
};

/* In these a user's name may come before "ADDRESS port N". A text of the client may come after it
 * in those of which `after` is true. */
static const struct {
    const char *front;
    bool after;
} with_user[] = {{"Disconnected from ", false},
                 {"Connection closed by ", false},
                 {"Connection reset by ", false},
                 {"Disconnecting ", true},
                 {"ssh_dispatch_run_fatal: Connection from ", true}};

/* The last "ADDRESS port N" of the text; how often there is one. */
static size_t address_port(text rest, text *client)
{
    text field, before = {NULL, 0};
    size_t found = 0;
    while (next_field(&rest, &field)) {
        if (same_text(field, "port") && before.at && bare_address(before).at) {
            *client = bare_address(before);
            found++;
        }
        before = field;
    }
    return found;
}

/* What follows "from NAME" where NAME is a host: "port 22", "not allowed because", or nothing in
 * messages of PAM. */
static bool name_follows(text message, text name, text after)
{
    text next;
    bool pam = begins_with(message, "error: PAM: ");
    if (!is_name(name))
        return false;
    if (!next_field(&after, &next))
        return pam;
    return same_text(next, "port") || same_text(next, "not") || (pam && same_text(next, "via"));
}

/* "port N ssh2:" behind an address: what follows may be of the client. */
static bool text_follows(text after)
{
    text field;
    return next_field(&after, &field) && same_text(field, "port") && next_field(&after, &field) &&
           next_field(&after, &field) && (same_text(field, "ssh1:") || same_text(field, "ssh2:"));
}

/* The last "from ADDRESS" (or "FROM"); how often there is one. *unsure: an earlier one may be the
 * right one. */
static size_t last_from(text message, text *client, bool *unsure)
{
    text rest = message, field, before = {NULL, 0}, address;
    size_t found = 0;
    bool followed = false;
    *unsure = false;
    while (next_field(&rest, &field)) {
        if (before.at && (same_text(before, "from") || same_text(before, "FROM"))) {
            address = address_in(field);
            if (!address.at && name_follows(message, field, rest))
                address = field;
            if (address.at) {
                *unsure = *unsure || followed;
                followed = text_follows(rest);
                *client = address;
                found++;
            }
        }
        before = field;
    }
    return found;
}

static const char no_address[] = "the message names no address";
static const char several[] = "the message names several addresses, and a client can write some";

/* "rhost=ADDRESS", in a message of PAM, between two names that a client may choose. */
static const char *remote_host(text rest, text *client)
{
    text field, host = {NULL, 0};
    while (next_field(&rest, &field)) {
        if (!begins_with(field, "rhost="))
            continue;
        if (host.at)
            return several;
        host = part_of(field, 6, field.len - 6);
    }
    *client = host.at && bare_address(host).at ? bare_address(host) : host;
    return client->len && (bare_address(host).at || is_name(host)) ? NULL : no_address;
}

const char *parse_ssh(text message, text *client)
{
    text rest, field;
    size_t i, found;
    bool unsure;
    if (begins_with(message, "pam_unix(") || begins_with(message, "PAM "))
        return remote_host(message, client);
    for (i = 0; i < sizeof fronts / sizeof *fronts; i++) {
        if (!begins_with(message, fronts[i]))
            continue;
        rest = part_of(message, strlen(fronts[i]), message.len - strlen(fronts[i]));
        if (next_field(&rest, &field) && front_address(field).at) {
            *client = front_address(field);
            return NULL;
        }
    }
    for (i = 0; i < sizeof with_user / sizeof *with_user; i++)
        if (begins_with(message, with_user[i].front)) {
            found = address_port(message, client);
            return found > 1 && with_user[i].after ? several : found ? NULL : no_address;
        }
    if (begins_with(message, "reverse mapping checking getaddrinfo for ")) {
        rest = part_of(message, 41, message.len - 41);
        if (next_field(&rest, &field) && next_field(&rest, &field) && address_in(field).at) {
            *client = address_in(field);
            return NULL;
        }
        return no_address;
    }
    found = last_from(message, client, &unsure);
    return unsure ? several : found ? NULL : no_address;
}

/* Any other program: what is between the words of the message is not known, so two addresses are
 * one too many. */
static const char *other_message(text message, text *client)
{
    bool unsure;
    size_t found = last_from(message, client, &unsure);
    if (found > 1)
        return several;
    if (found == 1)
        return NULL;
    return remote_host(message, client);
}

const char *parse_message(file_state *s, text message, bool of_ssh, parts *p)
{
    (void)s;
    p->form = of_ssh ? FORM_SSH : FORM_SYSLOG;
    return of_ssh ? parse_ssh(message, &p->client) : other_message(message, &p->client);
}
