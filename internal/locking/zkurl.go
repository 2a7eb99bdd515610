package locking

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// ZooKeeperForm is what a URL of ZooKeeper looks like.
const ZooKeeperForm = "zookeeper://[user:password@]host:port[,host:port…][/folder]"

var zkFolder = regexp.MustCompile(`^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$`)

// CheckZooKeeperURL says why ZooKeeper cannot be reached under this URL by its form alone, without ever quoting a
// secret.
func CheckZooKeeperURL(raw string) error {
	_, err := parseZooKeeperURL(raw)
	return err
}

// parseZooKeeperURL reads the URL by hand, because net/url refuses several addresses with ports.
func parseZooKeeperURL(raw string) (u zkURL, _ error) {
	rest, ok := strings.CutPrefix(raw, "zookeeper://")
	if !ok {
		return u, errors.New("it must begin with zookeeper://")
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, password, both := strings.Cut(rest[:at], ":")
		var err error
		if u.user, err = url.PathUnescape(user); err == nil {
			u.password, err = url.PathUnescape(password)
		}
		if err != nil || !both || u.user == "" || u.password == "" || strings.ContainsAny(rest[:at], "/?#") ||
			strings.Contains(u.user, ":") {
			return u, errors.New("before the @ stand user:password, with special characters percent-encoded")
		}
		rest = rest[at+1:]
	}
	hosts, folder, _ := strings.Cut(rest, "/")
	u.path = "/rollbackd"
	if folder != "" {
		u.path = "/" + folder
	}
	if !zkFolder.MatchString(u.path) {
		return u, errors.New("the folder must be a path of letters, digits, - _ and . without a slash at its end")
	}
	for i, addr := range strings.Split(hosts, ",") {
		addr = strings.TrimSpace(addr)
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			host, port = strings.Trim(addr, "[]"), "2181"
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if host == "" || err != nil || n == 0 || strings.ContainsAny(host, " /?#@") {
			return u, fmt.Errorf("address %d is not host:port", i+1)
		}
		u.hosts = append(u.hosts, net.JoinHostPort(host, port))
	}
	return u, nil
}
