package client

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"time"
)

// recordConn is the socket below a TLS connection. It follows the record headers in what is read, because crypto/tls
// does not tell whether it holds a part of a record.
type recordConn struct {
	net.Conn
	header  [5]byte // type, version, length
	headLen int     // how many bytes of the header have been read; all of them within a record
	left    int     // bytes of the record that have not been read
}

func (c *recordConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for read := p[:max(n, 0)]; len(read) > 0; {
		if c.headLen < len(c.header) {
			copied := copy(c.header[c.headLen:], read)
			c.headLen += copied
			read = read[copied:]
			if c.headLen < len(c.header) {
				break
			}
			c.left = int(binary.BigEndian.Uint16(c.header[3:]))
		}
		skipped := min(c.left, len(read))
		c.left -= skipped
		read = read[skipped:]
		if c.left == 0 {
			c.headLen = 0
		}
	}
	return n, err
}

// partial returns whether a part of a record has been read.
func (c *recordConn) partial() bool { return c.headLen > 0 }

// holdsNothing returns whether an idle TLS connection has neither decrypted bytes, nor a record, nor a part of one, that
// it has read from the socket. The deadline keeps the read from the socket itself.
func (c *conn) holdsNothing() bool {
	if c.records.partial() || c.SetReadDeadline(pastDeadline) != nil {
		return false
	}
	var one [1]byte
	n, err := c.Conn.Read(one[:])
	return n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && c.SetReadDeadline(time.Time{}) == nil
}
